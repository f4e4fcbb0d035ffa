// One key: its row, its history as a time line, and whether an event is in it.
import { ask as plainAsk, segment } from "./api.js";
import { badge, errorBox, facts, field, h, moment, number, valueNode } from "./dom.js";
import { keyAddress, keyFields } from "./tables.js";

const VERSIONS = 100;

export async function keyPage(context) {
  const { view, name, ask, query, part } = context;
  const path = `tables/${segment(name)}`;
  const table = await ask(path);
  let key = {};
  try {
    key = JSON.parse(query.get("key") ?? "{}");
  } catch {
    view.append(errorBox(new Error("The address has no key that can be read.")));
  }
  const fields = keyFields(table, { values: key });
  const problem = h("div");
  view.append(
    h("p", { class: "links" }, h("a", { href: `#/tables/${segment(name)}` }, "All rows")),
    h("form", { class: "search", submit: (event) => {
      event.preventDefault();
      try {
        const wanted = keyAddress(name, fields.read());
        if (wanted === location.hash) window.dispatchEvent(new Event("hashchange"));
        else location.hash = wanted;
      } catch (wrong) {
        problem.replaceChildren(errorBox(wrong));
      }
    } }, h("fieldset", {}, h("legend", {}, "Key"), fields.elements), h("button", { type: "submit" }, "Show")),
    problem,
  );
  if (!table.key.every((column) => column in key)) {
    if (table.key.length) {
      view.append(h("p", { class: "note" }, "Fill all columns of the key."));
      return;
    }
  }
  await part("Row", async () => {
    const found = await ask(`${path}/rows:get`, { question: { keys: [key] } });
    const [row] = found.rows;
    const why = found.evicted.length ? "It isn't there: it has expired." : found.maybe_evicted.length ? "It isn't there: it may have expired." : "It isn't there.";
    return [
      row ? facts(table.columns.map((column) => [column.name, valueNode(row[column.name], row._errors?.[column.name])])) : h("p", { class: "empty" }, why),
      found.final.length > 0 && h("p", {}, badge("final", "stopped"), " The row has expired; these are its last values."),
      h("p", { class: "note" }, `As of batch ${number(found.batch)}${found.changed[0] === null || found.changed[0] === undefined ? "" : `; last changed in batch ${number(found.changed[0])}`}.`),
    ];
  });
  await part("History", () => history(context, path, table, key));
  await part("Is this event in?", () => event(context, path, key));
}

async function history({ ask }, path, table, key) {
  const found = await ask(`${path}/versions`, { question: { key, limit: VERSIONS } });
  if (!found.versions.length) return h("p", { class: "empty" }, "No version of this row is kept.");
  const values = table.columns.filter((column) => !column.key);
  const before = (place, column) => JSON.stringify(found.versions[place - 1]?.row[column]);
  const items = found.versions.map((version, place) => h("li", { class: version.kind ?? "before" },
    h("p", {}, badge(version.kind ?? "before", version.kind ?? "unknown"), " ", version.batch === null ? "before what is kept" : `batch ${number(version.batch)}`, version.committed_ms !== null && [", ", moment(version.committed_ms)],
      version.until_batch === null ? h("strong", {}, " – now") : ` – until batch ${number(version.until_batch)}`),
    facts(values.map((column) => {
      const value = valueNode(version.row[column.name], version.row._errors?.[column.name]);
      const isNew = place > 0 && before(place, column.name) !== JSON.stringify(version.row[column.name]);
      return [column.name, isNew ? h("mark", {}, value) : value];
    })),
  )).reverse();
  return [h("ol", { class: "time-line", "aria-label": "Versions, the newest first" }, items), found.more && h("p", { class: "note" }, `Only the first ${VERSIONS} versions that are kept are shown.`)];
}

function event({ say }, path, key) {
  const text = (hint) => h("input", { type: "text", autocomplete: "off", spellcheck: "false", placeholder: hint });
  const offset = text("topic:partition:offset");
  const file = text("file:///…");
  const line = h("input", { type: "number", min: "1" });
  const time = text("2026-03-01T12:00:00Z");
  const answer = h("div", { role: "status" });
  return [h("form", { class: "search", submit: async (submitted) => {
    submitted.preventDefault();
    const question = { ...(Object.keys(key).length && { key }) };
    if (offset.value) question.offset = offset.value.trim();
    if (file.value) question.file = file.value.trim();
    if (line.value) question.line = Number(line.value);
    if (time.value) question.event_time = time.value.trim();
    try {
      const found = await plainAsk(`${path}/event`, { question });
      const where = found.batch_read === null ? "No batch has read it." : `Batch ${number(found.batch_read)} read it.`;
      answer.replaceChildren(h("p", {}, badge(found.applied ? "applied" : "not applied", found.applied ? "running" : "stopped"), ` ${where} Late: ${found.late}.`), h("p", {}, found.reason));
    } catch (wrong) {
      answer.replaceChildren(errorBox(wrong));
      say(wrong.message);
    }
  } }, h("div", { class: "fields" }, field("Offset in Kafka", offset), field("or file", file), field("line", line), field("Event time", time, "If its row isn't known.")), h("button", { type: "submit" }, "Look")), answer];
}
