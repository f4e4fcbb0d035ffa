// All tables, and the rows of one: by pages, a part of the key, a range; also as files.
import { Refused, save, segment } from "./api.js";
import { badge, bytes, errorBox, facts, field, h, longGrid, moment, newId, number, plain, valueNode } from "./dom.js";
import { tableLink } from "./jobs.js";

const PAGE_ROWS = 100;

export async function tablesPage({ view, ask, query, say }) {
  const filter = h("input", { type: "search", value: query.get("like") ?? "", autocomplete: "off" });
  const list = h("div");
  view.append(field("Names that contain", filter), list);
  const { tables } = await ask("tables");
  const columns = [
    { label: "Table", sort: (row) => row.table, cell: (row) => tableLink(row.table) },
    { label: "Rows", numeric: true, sort: (row) => row.row_count, cell: (row) => number(row.row_count) },
    { label: "Key", cell: (row) => (row.error ? badge(row.error.condition, "bad") : row.key.join(", ")) },
    { label: "Columns", cell: (row) => row.columns?.filter((column) => !column.key).map((column) => column.name).join(", ") },
    { label: "Job", sort: (row) => row.job, cell: (row) => row.job },
    { label: "Batch", numeric: true, sort: (row) => row.batch, cell: (row) => number(row.batch) },
    { label: "Committed", sort: (row) => row.position?.committed_ms, cell: (row) => moment(row.position?.committed_ms) },
  ];
  const show = () => {
    const rows = tables.filter((table) => table.table.includes(filter.value));
    list.replaceChildren(longGrid({ caption: `${number(rows.length)} of ${number(tables.length)} tables`, columns, rows, empty: "No table has such a name." }));
  };
  filter.addEventListener("input", () => { show(); say(list.querySelector("caption")?.textContent ?? "No table has such a name."); });
  show();
}

/** Where the page of one key is. */
export function keyAddress(table, key) {
  return `#/tables/${segment(table)}/key?key=${encodeURIComponent(JSON.stringify(key))}`;
}

/** The columns of a table's rows, whose first cell leads to the row's own page. */
export function rowColumns(table, name) {
  return table.columns.map((column, place) => ({
    label: column.name,
    numeric: /^(?:tinyint|smallint|int|bigint|float|double|decimal)/u.test(column.type),
    cell: (row) => {
      const value = valueNode(row[column.name], row._errors?.[column.name]);
      return place === 0 && table.key.length ? h("a", { href: keyAddress(name, Object.fromEntries(table.key.map((each) => [each, row[each]]))) }, value) : value;
    },
  }));
}

/** A typed text as the JSON of a value of a column. Throws a message. */
export function parsed(type, text) {
  if (/^(?:struct|array|map)/u.test(type) || type === "interval") {
    try {
      return JSON.parse(text);
    } catch {
      throw new Error(`Write a ${type} as JSON.`);
    }
  }
  if (type === "boolean") {
    if (!["true", "false"].includes(text)) throw new Error("Write true or false.");
    return text === "true";
  }
  if (/^(?:float|double)$/u.test(type) && text.trim() !== "" && Number.isFinite(Number(text))) return Number(text);
  return text;
}

/** Fields for values of key columns. `read` gives those that were filled, by name; it throws a message. */
export function keyFields(table, { values = {}, label = (name) => name } = {}) {
  const inputs = table.columns.filter((column) => column.key).map((column) => {
    const given = values[column.name];
    const input = h("input", { type: "text", autocomplete: "off", spellcheck: "false", value: given === undefined || given === null ? "" : typeof given === "string" ? given : JSON.stringify(given) });
    const isNull = h("input", { type: "checkbox", id: newId("null"), checked: given === null && column.name in values });
    const isEmpty = h("input", { type: "checkbox", id: newId("empty"), checked: given === "" });
    const also = column.type === "string" && h("label", { for: isEmpty.id }, isEmpty, "empty text");
    return { column, input, isNull, isEmpty, element: h("div", { class: "key-field" }, field(label(column.name), input, column.type), h("div", { class: "also" }, h("label", { for: isNull.id }, isNull, "NULL"), also)) };
  });
  const read = () => Object.fromEntries(inputs.filter((each) => each.isNull.checked || each.isEmpty.checked || each.input.value !== "").map(({ column, input, isNull, isEmpty }) => {
    try {
      return [column.name, isNull.checked ? null : isEmpty.checked ? "" : parsed(column.type, input.value)];
    } catch (wrong) {
      throw new Error(`${column.name}: ${wrong.message}`);
    }
  }));
  return { elements: inputs.map((each) => each.element), read };
}

/** Buttons that save the answer to a question as a file. `question` may throw a message. */
export function exports(path, question, name, { say, failed }) {
  const button = (form, word) => h("button", { type: "button", class: "quiet", click: async (event) => {
    const pressed = event.currentTarget;
    pressed.disabled = true;
    try {
      const size = await save(path, question(), form, name);
      say(`Saved ${bytes(size)}.`);
    } catch (wrong) {
      failed(wrong);
    }
    pressed.disabled = false;
  } }, word);
  return h("div", { class: "exports", role: "group", "aria-label": "Save as a file" }, "Save as ", button("csv", "CSV"), button("ndjson", "NDJSON"), button("arrow", "Arrow"));
}

export async function tablePage(context) {
  const { view, name, ask, say, meanwhile } = context;
  const path = `tables/${segment(name)}`;
  const table = await ask(path);
  view.append(
    h("p", { class: "links" }, h("a", { href: `#/tables/${segment(name)}/key` }, "One key"), h("a", { href: `#/tables/${segment(name)}/live` }, "Live changes"), h("a", { href: `#/sql?table=${segment(name)}` }, "SQL")),
    facts([
      ["Rows", number(table.row_count)], ["Job", h("a", { href: `#/jobs/${segment(table.job)}` }, table.job)], ["State", badge(table.job_state)],
      ["Batch", number(table.batch)], ["Committed", moment(table.position.committed_ms)], ["Not applied", number(table.lag.behind_batches)],
      ["Name that means it", table.meant_by ?? ""], ["Shard", table.shard ?? ""],
    ]),
    table.warnings.map((warning) => h("p", { class: "warning" }, warning))
      .reduce((all, each) => { all.append(each); return all; }, h("div")),
  );
  const some = keyFields(table);
  const from = keyFields(table, { label: (column) => `from ${column}` });
  const to = keyFields(table, { label: (column) => `before ${column}` });
  const reverse = h("input", { type: "checkbox", id: newId("reverse") });
  const problem = h("div");
  const rows = h("div");
  const pager = h("div", { class: "pager" });
  let asks = 0;
  const question = () => {
    const key = some.read();
    const ranges = Object.fromEntries([["start", from.read()], ["end", to.read()]].filter(([, given]) => Object.keys(given).length));
    return { ...(Object.keys(key).length && { key }), ...ranges, ...(reverse.checked && { reverse: true }) };
  };
  const failed = (wrong) => {
    if (wrong instanceof Refused && wrong.status === 401) throw wrong;
    problem.replaceChildren(errorBox(wrong));
  };
  /** Show a page; `tokens` are those of the pages before it, and its own. What was asked last wins, whichever answer comes first. */
  const turn = async (asked, tokens) => {
    const mine = ++asks;
    const token = tokens.at(-1);
    try {
      const page = await ask(`${path}/rows:scan`, { question: { ...asked, limit: PAGE_ROWS, ...(token && { token }) } });
      if (mine !== asks) return;
      problem.replaceChildren();
      const first = (tokens.length - 1) * PAGE_ROWS;
      const caption = `Rows ${number(first + Math.min(1, page.rows.length))} to ${number(first + page.rows.length)}, as of batch ${number(page.batch)}`;
      rows.replaceChildren(longGrid({ caption, columns: rowColumns(table, name), rows: page.rows, empty: "No row is there." }));
      say(caption);
      const button = (word, is, to) => h("button", { type: "button", disabled: !is, click: () => meanwhile(() => turn(asked, to)) }, word);
      pager.replaceChildren(
        button("First page", tokens.length > 1, [null]),
        button("Page before", tokens.length > 1, tokens.slice(0, -1)),
        button("Next page", page.more, [...tokens, page.token]),
      );
    } catch (wrong) {
      if (wrong.name !== "AbortError" && mine === asks) failed(wrong);
    }
  };
  const search = h("form", { class: "search", submit: (event) => {
    event.preventDefault();
    let asked;
    try {
      asked = question();
    } catch (wrong) {
      asks++; // an answer on its way isn't to what is typed now
      failed(wrong);
      return;
    }
    meanwhile(() => turn(asked, [null]));
  } },
  h("fieldset", {}, h("legend", {}, "Rows with these first columns of the key"), some.elements),
  h("details", {}, h("summary", {}, "From one key to another"), h("fieldset", {}, h("legend", {}, "From this key on"), from.elements), h("fieldset", {}, h("legend", {}, "Before this key"), to.elements)),
  h("div", { class: "row" }, h("label", { for: reverse.id, class: "check" }, reverse, "last keys first"), h("button", { type: "submit" }, "Show rows")));
  view.append(
    h("details", { class: "definition" }, h("summary", {}, `${number(table.columns.length)} columns`), h("ul", {}, table.columns.map((column) => h("li", {}, h("code", {}, column.name), ` ${column.type}`, column.key && " (key)", column.raw && h("span", { class: "note" }, ` as stored: ${plain(column.raw)}`))))),
    search, exports(`${path}/rows:scan`, question, name, { say, failed: (wrong) => meanwhile(async () => failed(wrong)) }), problem, rows, pager,
  );
  await turn({}, [null]);
}
