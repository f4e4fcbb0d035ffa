// Savepoints, and which came of which.
import { segment } from "./api.js";
import { badge, bytes, errorBox, facts, grid, h, moment, number } from "./dom.js";

export async function savepointsPage({ view, ask, part }) {
  const { savepoints, incomplete, unread } = await ask("savepoints");
  view.append(grid({
    caption: `${number(savepoints.length)} savepoints`,
    columns: [
      { label: "Savepoint", sort: (row) => row.name, cell: (row) => row.name },
      { label: "Job", sort: (row) => row.job, cell: (row) => row.job },
      { label: "Batch", numeric: true, sort: (row) => row.batch, cell: (row) => number(row.batch) },
      { label: "Made", sort: (row) => row.created_ms, cell: (row) => moment(row.created_ms) },
      { label: "Rows", numeric: true, sort: (row) => row.rows, cell: (row) => number(row.rows) },
      { label: "Size", numeric: true, sort: (row) => row.size_bytes, cell: (row) => bytes(row.size_bytes) },
      { label: "Note", cell: (row) => row.note },
    ],
    rows: savepoints.toSorted((a, b) => b.created_ms - a.created_ms),
    empty: "There is none yet. Make one: millpond savepoint create.",
  }));
  if (incomplete.length) view.append(h("p", { class: "warning" }, `Being made, or left by a process that was killed: ${incomplete.join(", ")}.`));
  for (const each of unread) view.append(h("h2", {}, each.savepoint), errorBox(each.error));
  if (savepoints.length) await part("Lineage", () => lineage(savepoints, ask));
}

function lineage(savepoints, ask) {
  const above = (each) => each.parent ?? each.origin;
  const names = new Set(savepoints.map((each) => each.name));
  const below = Map.groupBy(savepoints, (each) => (names.has(above(each)) ? above(each) : ""));
  const item = (each) => h("li", {},
    h("details", { toggle: (event) => open(event.currentTarget, each, ask) }, h("summary", {}, each.name, " ", badge(each.job, "unknown"), ` batch ${number(each.batch)}`, each.origin && ` – the job began with ${each.origin}`, each.shares_with && ` – shares files with ${each.shares_with}`)),
    below.has(each.name) && list(below.get(each.name)));
  const list = (some) => h("ul", {}, some.toSorted((a, b) => a.created_ms - b.created_ms).map(item));
  return h("div", { class: "lineage" }, list(below.get("") ?? []));
}

async function open(details, each, ask) {
  if (!details.open || details.dataset.asked) return;
  details.dataset.asked = "yes";
  try {
    const found = await ask(`savepoints/${segment(each.name)}`);
    details.append(facts([["Tables", found.tables.join(", ")], ["Operators", Object.entries(found.operators).map(([id, name]) => `${id} ${name}`).join(", ")],
      ["Partitions", number(found.partitions.length)], ["Files", number(found.files)], ["Watermark", moment(found.watermark_ms)], ["Checkpoint", found.checkpoint]]));
  } catch (wrong) {
    details.append(errorBox(wrong));
  }
}
