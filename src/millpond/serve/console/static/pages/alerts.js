// What fires, since when, and what to do.
import { segment } from "./api.js";
import { badge, bytes, errorBox, facts, h, moment, number, seconds } from "./dom.js";

const EVERY_SECONDS = 30;
const UNITS = { bytes, seconds };

export async function alertsPage({ view, ask, keep, say }) {
  const list = h("div");
  view.append(list);
  let before = "";
  await keep(EVERY_SECONDS, () => ask("alerts"), ({ alerts, unknown }) => {
    const now = JSON.stringify([alerts, unknown]);
    if (now === before) return;
    before = now;
    const loud = alerts.filter((alert) => alert.silenced === null);
    say(`${number(loud.length)} alerts`);
    list.replaceChildren(
      h("p", { class: loud.length ? "warning" : "empty" }, loud.length ? `${number(loud.length)} ${loud.length === 1 ? "alert fires" : "alerts fire"}.` : "No alert fires."),
      ...[...loud, ...alerts.filter((alert) => alert.silenced !== null)].map(one),
      ...unknown.map(({ job, error }) => h("article", {}, h("h2", {}, job), h("p", {}, "Its alerts aren't known."), errorBox(error))),
    );
  });
}

function one(alert) {
  const write = UNITS[alert.unit] ?? ((value) => `${number(Math.round(value * 100) / 100)} ${alert.unit}`);
  return h("article", { class: alert.silenced === null ? "alert" : "alert silenced" },
    h("h2", {}, h("a", { href: `#/jobs/${segment(alert.job)}` }, alert.job), `: ${alert.title}`),
    h("p", {}, badge(alert.rule, alert.silenced === null ? "bad" : "unknown"), alert.silenced !== null && ` silenced: ${alert.silenced}`),
    facts([["Measured", write(alert.value)], ["Threshold", write(alert.threshold)], ["Since", moment(alert.since_ms)], ["Do", alert.advice]]),
    h("details", {}, h("summary", {}, "Runbook"), h("p", {}, alert.runbook)));
}
