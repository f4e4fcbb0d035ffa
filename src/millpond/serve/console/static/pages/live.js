// The changes of a table as they come. Only the newest are kept here.
import { Refused, events, segment } from "./api.js";
import { badge, h, longGrid, number, plain, text, valueText } from "./dom.js";

const KEPT = 500;

export async function livePage({ view, name, ask, patiently, reached, meanwhile, signal, say }) {
  const path = `tables/${segment(name)}`;
  const table = await ask(path);
  const list = h("div");
  const count = h("p", { class: "note" }, "Waiting for the next batch …");
  let paused = false;
  let kept = [];
  let seen = 0;
  const hold = h("button", { type: "button", "aria-pressed": "false", click: () => {
    paused = !paused;
    hold.setAttribute("aria-pressed", String(paused));
    hold.textContent = paused ? "Go on" : "Pause";
    if (!paused) show();
  } }, "Pause");
  view.append(h("p", { class: "links" }, h("a", { href: `#/tables/${segment(name)}` }, "All rows")), h("div", { class: "row" }, hold, count), list);
  const values = table.columns.filter((column) => !column.key);
  const columns = [
    { label: "Key", cell: ({ row }) => table.key.map((column) => valueText(row[column])).join(", ") },
    { label: "Change", cell: ({ change }) => badge(change.kind, change.kind) },
    { label: "Batch", numeric: true, cell: ({ change }) => number(change.batch) },
    ...values.map((column) => ({ label: column.name, cell: ({ change }) => changed(change, column.name) })),
  ];
  const show = () => list.replaceChildren(longGrid({ caption: `The newest ${number(kept.length)} of ${number(seen)} changes`, columns, rows: kept, empty: "No change has come yet." }));
  show();
  let since = "";
  // A stream that broke off goes on after its last event.
  const follow = async () => {
    while (!signal.aborted) await patiently(async () => {
      for await (const found of events(`${path}/changes`, { since, signal })) {
        reached();
        if (found.event === "error") throw new Refused(200, found.data.error);
        since = found.id || since;
        const fresh = found.data.changes.map((change) => ({ change, row: change.new ?? change.final ?? change.old ?? {} }));
        if (!fresh.length) continue;
        seen += fresh.length;
        kept = [...fresh.reverse(), ...kept].slice(0, KEPT);
        count.textContent = plain(`${number(seen)} changes so far; the newest batch is ${number(found.data.batch)}.`);
        say(`${number(fresh.length)} changes in batch ${number(found.data.batch)}.`);
        if (!paused) show();
      }
      await new Promise((resolve) => setTimeout(resolve, 1000));
    });
  };
  meanwhile(follow);
}

function changed(change, column) {
  const [before, after] = [change.old?.[column], (change.new ?? change.final)?.[column]];
  const shown = (value) => (value === undefined ? "" : text(valueText(value)));
  if (change.old && after !== undefined && JSON.stringify(before) !== JSON.stringify(after)) return [h("del", {}, shown(before)), " ", h("ins", {}, shown(after))];
  return shown(after ?? before);
}
