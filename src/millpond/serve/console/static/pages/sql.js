// A statement, whose tables and columns are completed while it is typed, and its answer.
import { Refused, ask as plainAsk } from "./api.js";
import { errorBox, field, h, longGrid, newId, number, plain, valueNode } from "./dom.js";
import { exports } from "./tables.js";

const WORDS = "SELECT FROM WHERE GROUP BY ORDER BY LIMIT HAVING JOIN LEFT JOIN ON AND OR NOT IN IS NULL LIKE BETWEEN DISTINCT AS ASC DESC CASE WHEN THEN ELSE END count sum avg min max WITH".split(" ");
const OFFERED = 8;
const LAST = "millpond.statement";

export async function sqlPage(context) {
  const { view, ask, query, say } = context;
  const listed = h("ul", { class: "offers", role: "listbox", id: newId("offers"), "aria-label": "Completions", hidden: true });
  const table = query.get("table");
  const named = table && (/^[a-z_]\w*$/u.test(table) ? table : `"${table.replaceAll('"', '""')}"`);
  const input = h("textarea", { rows: "5", spellcheck: "false", autocapitalize: "off", autocomplete: "off", "aria-autocomplete": "list", "aria-controls": listed.id });
  input.value = named ? `SELECT * FROM ${named} LIMIT 100` : sessionStorage.getItem(LAST) ?? "";
  const separate = h("input", { type: "checkbox", id: newId("separate") });
  const answer = h("div");
  const run = h("button", { type: "submit" }, "Run");
  let running = new AbortController();
  context.signal.addEventListener("abort", () => running.abort());
  const question = () => ({ statement: input.value.trim(), ...(separate.checked && { separate: true }) });
  const failed = (wrong) => answer.replaceChildren(errorBox(wrong));
  const form = h("form", { class: "statement", submit: async (event) => {
    event.preventDefault();
    close();
    if (!input.value.trim()) return;
    sessionStorage.setItem(LAST, input.value);
    // A newer statement ends an older one: only the answer to the newest is shown.
    running.abort();
    const { signal } = running = new AbortController();
    answer.setAttribute("aria-busy", "true");
    try {
      const found = await plainAsk("sql", { question: question(), signal });
      if (signal.aborted) return;
      show(answer, found, say);
    } catch (wrong) {
      if (signal.aborted) return;
      failed(wrong);
    }
    answer.removeAttribute("aria-busy");
  } }, h("div", { class: "completed" }, field("One SELECT", input, "Ctrl+Enter runs it. Ctrl+Space offers names; arrows choose, Enter takes, Escape closes."), listed),
  h("div", { class: "row" }, run, h("label", { for: separate.id, class: "check" }, separate, "jobs may be of different offsets"), exports("sql", question, "answer", { say, failed })));
  view.append(form, answer);

  const names = new Map(WORDS.map((word) => [word, "word"]));
  let chosen = 0;
  const word = () => input.value.slice(0, input.selectionStart).match(/[\p{L}_][\p{L}\p{N}_.]*$/u)?.[0] ?? "";
  const close = () => {
    listed.hidden = true;
    input.removeAttribute("aria-activedescendant");
  };
  const take = (name) => {
    const begun = word();
    const end = input.selectionStart;
    const quoted = /^[\p{L}_][\p{L}\p{N}_]*$/u.test(name) ? name : `"${name.replaceAll('"', '""')}"`;
    input.setRangeText(quoted, end - begun.length, end, "end");
    close();
    input.focus();
  };
  const mark = () => [...listed.children].forEach((item, place) => {
    item.setAttribute("aria-selected", String(place === chosen));
    if (place === chosen) { input.setAttribute("aria-activedescendant", item.id); item.scrollIntoView({ block: "nearest" }); }
  });
  const offer = (always) => {
    const begun = word().toLowerCase();
    const found = begun || always ? [...names].filter(([name]) => name.toLowerCase().startsWith(begun) && name.toLowerCase() !== begun).slice(0, OFFERED) : [];
    if (!found.length) return close();
    chosen = 0;
    listed.replaceChildren(...found.map(([name, kind]) => h("li", { role: "option", id: newId("offer"), "data-name": name, mousedown: (event) => { event.preventDefault(); take(name); } }, name, h("small", {}, kind))));
    listed.hidden = false;
    mark();
    say(`${found.length} completions; the first is ${plain(found[0][0])}`);
  };
  input.addEventListener("input", () => offer(false));
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    if (event.ctrlKey && event.key === "Enter") {
      if (!event.repeat) form.requestSubmit();
    } else if (event.ctrlKey && event.key === " ") offer(true);
    else if (listed.hidden) return;
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      chosen = (chosen + (event.key === "ArrowDown" ? 1 : listed.children.length - 1)) % listed.children.length;
      mark();
    } else if (event.key === "Enter") take(listed.children[chosen].dataset.name);
    else if (event.key === "Escape") close();
    else return;
    event.preventDefault();
  });
  const { tables } = await ask("tables");
  for (const each of tables) {
    names.set(each.table, "table");
    for (const column of each.columns ?? []) if (!names.has(column.name)) names.set(column.name, `column of ${each.table}`);
  }
}

function show(answer, found, say) {
  const columns = found.columns.map((column) => ({
    label: column.name,
    numeric: /^(?:tinyint|smallint|int|bigint|float|double|decimal)/u.test(column.type),
    cell: (row) => valueNode(row[column.name]),
  }));
  const of = found.jobs.map((job) => `${job.job} at batch ${number(job.batch)}`).join(", ");
  const caption = `${number(found.rows.length)} rows${of && ` of ${of}`}`;
  answer.replaceChildren(longGrid({ caption, columns, rows: found.rows, empty: "No row is in the answer." }));
  say(caption);
}
