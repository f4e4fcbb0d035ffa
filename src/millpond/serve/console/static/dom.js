// What pages are built of. Texts of the server become text nodes, never markup.
const INVISIBLE = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}\u2800]/gu;
let made = 0;

/** An id that nothing else on the page has. */
export const newId = (what) => `${what}-${++made}`;

/** An element. Attributes that are functions listen to events; false, null and undefined leave one out. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false).map(node));
  return element;
}

function node(child) {
  return child instanceof Node ? child : text(String(child));
}

/** A text; characters that can't be seen, or that turn others round, are shown as escapes. */
export function text(content) {
  const found = document.createDocumentFragment();
  let place = 0;
  for (const match of content.matchAll(INVISIBLE)) {
    found.append(content.slice(place, match.index));
    const code = document.createElement("span");
    code.className = "control";
    code.textContent = escaped(match[0]);
    found.append(code);
    place = match.index + match[0].length;
  }
  found.append(content.slice(place));
  return found;
}

function escaped(character) {
  const digits = character.codePointAt(0).toString(16);
  return digits.length > 4 ? `\\u{${digits}}` : `\\u${digits.padStart(4, "0")}`;
}

/** The same for attributes and titles. */
export const plain = (content) => content.replaceAll(INVISIBLE, escaped);

/** A value of a row as text: JSON, but a text is itself. */
export const valueText = (value) => (typeof value === "string" ? value : value === null || value === undefined ? "NULL" : JSON.stringify(value));

/** A value of a row. `errors` are those of the row's values that can't be computed. */
export function valueNode(value, error) {
  if (error) return h("span", { class: "failed", title: plain(error.message) }, error.condition);
  if (value === null || value === undefined) return h("i", { class: "null" }, "NULL");
  if (value === "") return h("i", { class: "null" }, "empty");
  return text(valueText(value));
}

export const number = (value) => (value === null || value === undefined ? "" : value.toLocaleString("en-US"));

export function bytes(value) {
  if (value === null || value === undefined) return "";
  let size = value;
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (size < 1024 || unit === "TiB") return `${unit === "B" ? size : size.toFixed(1)} ${unit}`;
    size /= 1024;
  }
  return "";
}

export function seconds(value) {
  if (value === null || value === undefined) return "";
  for (const [unit, size] of [["d", 86_400], ["h", 3600], ["min", 60]]) if (value >= 2 * size) return `${(value / size).toFixed(1)} ${unit}`;
  if (value === 0) return "0 s";
  return value < 10 ? `${value.toFixed(value < 0.1 && value > 0 ? 3 : 1)} s` : `${Math.round(value)} s`;
}

/** A moment in UTC. */
export function moment(milliseconds) {
  if (milliseconds === null || milliseconds === undefined) return "";
  const iso = new Date(milliseconds).toISOString();
  return h("time", { datetime: iso }, iso.replace("T", " ").replace(/\.\d+Z$/u, " UTC"));
}

/** What the server refused, or that it can't be reached. */
export function errorBox(error) {
  return h(
    "div",
    { class: "error", role: "alert" },
    h("p", {}, h("strong", {}, error.condition ?? error.name), " ", error.message),
    error.hint && h("p", {}, error.hint),
  );
}

/** Show newer content in place of older: who reads it keeps the focus and the place. */
export function refresh(container, ...content) {
  const focused = container.contains(document.activeElement) ? document.activeElement : null;
  const place = [container.querySelector(".scroll")].filter(Boolean).map((frame) => [frame.scrollLeft, frame.scrollTop])[0];
  container.replaceChildren(...content);
  const frame = container.querySelector(".scroll");
  if (place && frame) [frame.scrollLeft, frame.scrollTop] = place;
  if (!focused) return;
  const same = (other) => other.tagName === focused.tagName && other.getAttribute("href") === focused.getAttribute("href") && (other === frame || other.textContent === focused.textContent);
  [...container.querySelectorAll("a, button, summary, [tabindex]")].find(same)?.focus({ preventScroll: true });
}

/** A table of few rows. Columns: {label, cell(row), numeric, sort(row)}; `order` keeps what it is sorted by. */
export function grid({ caption, columns, rows, order = {}, empty = "Nothing is here yet." }) {
  if (!rows.length) return h("p", { class: "empty" }, empty);
  const body = h("tbody");
  const fill = () => {
    const by = columns.find((column) => column.sort && column.label === order.label)?.sort;
    const shown = by ? rows.toSorted((a, b) => compare(by(a), by(b)) * (order.down ? -1 : 1)) : rows;
    body.replaceChildren(...shown.map((row) => h("tr", {}, columns.map((column, place) => cellOf(column, row, place)))));
  };
  const heads = columns.map((column) => {
    if (!column.sort) return h("th", { scope: "col", class: column.numeric && "numeric" }, column.label);
    const head = h("th", { scope: "col", class: column.numeric && "numeric" });
    head.append(
      h("button", {
        type: "button",
        class: "sort",
        click: () => {
          order.down = order.label === column.label ? !order.down : Boolean(column.numeric);
          order.label = column.label;
          mark();
          fill();
        },
      }, column.label),
    );
    return head;
  });
  const mark = () => heads.forEach((head, place) => {
    if (columns[place].label === order.label) head.setAttribute("aria-sort", order.down ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  });
  mark();
  fill();
  return scrolled(caption, h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, heads)), body));
}

function cellOf(column, row, place) {
  const made = column.cell(row);
  return h(place === 0 && !column.numeric ? "th" : "td", { scope: place === 0 && !column.numeric ? "row" : null, class: column.numeric && "numeric" }, made);
}

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return -1;
  if (b === null || b === undefined) return 1;
  return a < b ? -1 : 1;
}

function scrolled(label, ...children) {
  return h("div", { class: "scroll", role: "region", "aria-label": plain(label), tabindex: "0" }, ...children);
}

const ROW = 30;
const AROUND = 20;

/** A table of any number of rows, of which only those in sight are elements. */
export function longGrid({ caption, columns, rows, order, empty }) {
  if (rows.length <= 150) return grid({ caption, columns, rows, order, empty });
  const above = h("td", { colspan: columns.length });
  const below = h("td", { colspan: columns.length });
  const head = h("thead", {}, h("tr", { "aria-rowindex": "1" }, columns.map((c) => h("th", { scope: "col", class: c.numeric && "numeric" }, c.label))));
  const body = h("tbody");
  const view = scrolled(caption, h("table", { "aria-rowcount": rows.length + 1 }, h("caption", {}, caption), head, body));
  view.classList.add("long");
  let first = -1;
  const fill = () => {
    const begin = Math.max(0, Math.min(rows.length - 1, Math.floor(view.scrollTop / ROW) - AROUND));
    if (Math.abs(begin - first) < AROUND / 2 && first !== -1) return;
    first = begin;
    const end = Math.min(rows.length, begin + Math.ceil((view.clientHeight || 600) / ROW) + 2 * AROUND);
    above.style.height = `${begin * ROW}px`;
    below.style.height = `${(rows.length - end) * ROW}px`;
    body.replaceChildren(
      h("tr", { class: "gap", "aria-hidden": "true" }, above),
      ...rows.slice(begin, end).map((row, at) => h("tr", { "aria-rowindex": begin + at + 2 }, columns.map((column, place) => cellOf(column, row, place)))),
      h("tr", { class: "gap", "aria-hidden": "true" }, below),
    );
  };
  view.addEventListener("scroll", fill, { passive: true });
  fill();
  return view;
}

/** A field with its label. */
export function field(label, input, hint) {
  input.id ||= newId("field");
  const note = hint && h("small", { id: `${input.id}-hint` }, hint);
  if (note) input.setAttribute("aria-describedby", note.id);
  return h("div", { class: "field" }, h("label", { for: input.id }, label), input, note);
}

/** Terms and what they are. */
export const facts = (pairs) => h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));

export const badge = (word, kind = word) => h("span", { class: `badge ${kind}` }, word);
