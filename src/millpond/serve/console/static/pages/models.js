// Models that jobs serve: what runs, all versions, how fast and how often each is used.
import { segment } from "./api.js";
import { h, longGrid, number } from "./dom.js";
import { tableLink } from "./jobs.js";
import { rowColumns } from "./tables.js";

// The tables of `millpond.serve_models`, by the end of their names.
const PARTS = [["_models", "What runs"], ["_statistics", "Use and speed"], ["_versions", "All versions"], ["_model_errors", "Refused models"]];
const ROWS = 100;

export async function modelsPage({ view, ask, part }) {
  const { tables } = await ask("tables");
  const byName = new Map(tables.map((table) => [table.table, table]));
  const served = [...byName.keys()].filter((name) => name.endsWith("_models")).map((name) => name.slice(0, -"_models".length))
    .filter((name) => PARTS.every(([end]) => byName.has(name + end)));
  if (!served.length) {
    view.append(h("p", { class: "empty" }, "No job serves models. millpond.serve_models does."));
    return;
  }
  for (const name of served) {
    for (const [end, title] of PARTS) {
      const table = byName.get(name + end);
      await part(`${name}: ${title}`, async () => {
        if (table.error) throw Object.assign(new Error(table.error.message), table.error);
        const found = await ask(`tables/${segment(name + end)}/rows:scan`, { question: { limit: ROWS } });
        return [longGrid({ caption: `${title}, as of batch ${number(found.batch)}`, columns: rowColumns(table, name + end), rows: found.rows, empty: "None." }),
          found.more && h("p", { class: "note" }, "More rows are in ", tableLink(name + end), ".")];
      });
    }
  }
}
