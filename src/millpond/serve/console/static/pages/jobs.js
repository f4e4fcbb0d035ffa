// All jobs, and one job: its batches, its lag, its state.
import { segment } from "./api.js";
import { heatMap, plot } from "./charts.js";
import { badge, bytes, errorBox, facts, field, grid, h, longGrid, moment, number, refresh, seconds, valueText } from "./dom.js";

const EVERY_SECONDS = 5;
const SAMPLES_SECONDS = 60;
const SPANS = [["1 h", 3600], ["6 h", 6 * 3600], ["24 h", 86_400], ["7 d", 7 * 86_400], ["14 d", 14 * 86_400]];
const jobLink = (job) => h("a", { href: `#/jobs/${segment(job)}` }, job);
export const tableLink = (table) => h("a", { href: `#/tables/${segment(table)}` }, table);

const since = (milliseconds) => (milliseconds === null || milliseconds === undefined ? null : Math.max(0, (Date.now() - milliseconds) / 1000));
const stateBytes = (sample) => (sample?.sized_ms === undefined ? null : (sample.operators ?? []).reduce((sum, each) => sum + each.state_bytes, 0));
const behind = (sample) => {
  if (sample?.behind_records === undefined && sample?.waiting_files === undefined) return "";
  const [count, what] = sample.behind_records !== undefined ? [sample.behind_records, "record"] : [sample.waiting_files, "file"];
  return `${number(count)} ${what}${count === 1 ? "" : "s"}`;
};

function columns() {
  return [
    { label: "Job", sort: (row) => row.job, cell: (row) => jobLink(row.job) },
    { label: "State", sort: (row) => row.job_state, cell: (row) => (row.error ? badge(row.error.condition, "bad") : badge(row.job_state)) },
    { label: "Batch", numeric: true, sort: (row) => row.batch, cell: (row) => number(row.batch) },
    { label: "Not applied", numeric: true, sort: (row) => row.behind_batches, cell: (row) => number(row.behind_batches) },
    { label: "Took", numeric: true, sort: (row) => row.sample?.batch_seconds, cell: (row) => seconds(row.sample?.batch_seconds) },
    { label: "Age", numeric: true, sort: (row) => since(row.sample?.committed_ms), cell: (row) => seconds(since(row.sample?.committed_ms)) },
    { label: "Behind", numeric: true, sort: (row) => row.sample?.behind_records ?? row.sample?.waiting_files, cell: (row) => behind(row.sample) },
    { label: "Event lag", numeric: true, sort: (row) => since(row.sample?.watermark_ms), cell: (row) => seconds(since(row.sample?.watermark_ms)) },
    { label: "State size", numeric: true, sort: (row) => stateBytes(row.sample), cell: (row) => bytes(stateBytes(row.sample)) },
    { label: "Tables", cell: (row) => (row.tables.length > 3 ? `${number(row.tables.length)} tables` : row.tables.map((table, place) => [place ? ", " : "", tableLink(table)])) },
  ];
}

export async function jobsPage({ view, ask, keep }) {
  const list = h("div");
  view.append(list);
  const order = {};
  await keep(EVERY_SECONDS, () => ask("jobs"), ({ jobs }) => {
    refresh(list, longGrid({ caption: jobs.length === 1 ? "1 job" : `${number(jobs.length)} jobs`, columns: columns(), rows: jobs, order, empty: "There is no job yet. Start one with millpond.start." }));
  });
}

export async function jobPage(context) {
  const { view, name, ask, keep, part } = context;
  const now = h("div");
  view.append(now);
  await keep(EVERY_SECONDS, () => ask("jobs"), ({ jobs }) => {
    const job = jobs.find((each) => each.job === name);
    refresh(now, ...(job ? factsOf(job) : [h("p", { class: "empty" }, "There is no such job.")]));
  });
  await part("Over time", (section) => overTime(context, section));
  await part("State by partition", () => partitions(context));
  await part("Hot keys", () => hotKeys(context));
  await part("Advice", () => advice(context));
}

function factsOf(job) {
  const sample = job.sample ?? {};
  return [
    job.error && errorBox({ condition: job.error.condition, message: job.error.message, hint: job.error.hint }),
    facts([
      ["State", badge(job.job_state)],
      ["Batch", number(job.batch)],
      ["Committed and not applied", job.behind_batches === null ? "" : `${number(job.behind_batches)} batches, ${seconds(job.behind_seconds)}`],
      ["The newest batch took", seconds(sample.batch_seconds)],
      ["A planned batch waits since", seconds(sample.waiting_seconds)],
      ["Newest commit", sample.committed_ms && [seconds(since(sample.committed_ms)), " ago, ", moment(sample.committed_ms)]],
      ["Watermark", sample.watermark_ms === undefined ? "" : moment(sample.watermark_ms)],
      ["Behind the source", behind(sample)],
      ["The oldest file had waited", sample.oldest_file_ms === undefined ? "" : seconds((sample.at_ms - sample.oldest_file_ms) / 1000)],
      ["State size", bytes(stateBytes(sample))],
      ["Checkpoint", bytes(sample.checkpoint_bytes)],
      ["Tables", job.tables.length ? job.tables.map((table, place) => [place ? ", " : "", tableLink(table)]) : ""],
      ["Left out of the sample", sample.problem],
    ]),
  ].filter(Boolean);
}

async function overTime({ ask, name, keep, meanwhile, signal }, section) {
  const span = h("select", {}, SPANS.map(([word, size]) => h("option", { value: size }, word)));
  const plots = h("div", { class: "plots" });
  section.append(field("How far back", span), plots);
  let pages = new AbortController();
  signal.addEventListener("abort", () => pages.abort());
  let asks = 0;
  let shown = null;
  const ofSpan = () => ask(`jobs/${segment(name)}/samples?_limit=300&_since=${encodeURIComponent(new Date(Date.now() - span.value * 1000).toISOString().replace("Z", ""))}Z`);
  const load = async () => {
    const mine = ++asks;
    const chosen = span.value;
    return { mine, chosen, ...await ofSpan() };
  };
  const show = ({ mine, chosen, samples, found }) => {
    // A newer question has a newer answer. Whoever reads numbers keeps them, until another span is chosen.
    if (mine !== asks || (chosen === shown && plots.querySelector("details[open]"))) return;
    shown = chosen;
    pages.abort();
    pages = new AbortController();
    const times = samples.map((sample) => sample.at_ms);
    const of = (read) => samples.map((sample) => read(sample) ?? null);
    const draw = (title, unit, series) => plot({ title, unit, times, series, signal: pages.signal });
    plots.replaceChildren(...(samples.length ? [
      draw("Longest batch since the sample before", "seconds", [{ label: "longest batch", bars: true, values: of((s) => s.longest_batch_seconds) }]),
      draw("Batches since the sample before", "count", [{ label: "batches", bars: true, values: of((s) => s.batches ?? 0) }]),
      draw("Age of the newest commit and of the watermark", "seconds", [
        { label: "commit", values: of((s) => (s.committed_ms === undefined ? null : (s.at_ms - s.committed_ms) / 1000)) },
        { label: "watermark", values: of((s) => (s.watermark_ms === undefined ? null : (s.at_ms - s.watermark_ms) / 1000)) },
      ]),
      samples.some((s) => s.waiting_files !== undefined)
        ? draw("Files that wait", "count", [{ label: "files", values: of((s) => s.waiting_files) }])
        : draw("Records behind the source", "count", [{ label: "records", values: of((s) => s.behind_records) }]),
      draw("State that Spark would load", "bytes", [{ label: "state", values: of(stateBytes) }]),
      draw("Largest and median partition", "bytes", [
        { label: "largest", values: of((s) => largest(s, "largest_bytes")) },
        { label: "median", values: of((s) => largest(s, "median_bytes")) },
      ]),
      h("p", { class: "note" }, `${number(found)} samples${found > samples.length ? `, ${number(samples.length)} points` : ""}; times in UTC.`),
    ] : [h("p", { class: "empty" }, "Nobody has measured this job in that time. The server does it every minute, unless it runs with --no-samples.")]));
  };
  await keep(SAMPLES_SECONDS, load, show);
  span.addEventListener("change", () => meanwhile(async () => show(await load())));
}

const largest = (sample, fact) => (sample.operators?.length ? Math.max(...sample.operators.map((each) => each[fact])) : null);

async function partitions({ ask, name }) {
  const found = await ask(`jobs/${segment(name)}/partitions`);
  if (!found.operators.length) return h("p", { class: "empty" }, "The job has no state.");
  return [
    ...found.operators.map((each) => heatMap({ label: `Operator ${each.operator}, ${each.name}`, partitions: each.partitions, sizes: each.state_bytes })),
    h("p", { class: "note" }, `Of batch ${number(found.batch)}, measured at `, moment(found.measured_ms), "."),
  ];
}

async function hotKeys({ ask, name }) {
  const { hot_keys: found } = await ask(`jobs/${segment(name)}/hot-keys`);
  return grid({
    caption: "Hot keys",
    columns: [
      { label: "Key", cell: (row) => (row.key ? Object.entries(row.key).map(([column, value]) => `${column}=${valueText(value)}`).join(", ") : "not named yet") },
      { label: "Share of the rows", numeric: true, sort: (row) => row.share, cell: (row) => `${(100 * row.share).toFixed(1)} %` },
      { label: "Found in batch", numeric: true, cell: (row) => number(row.found_in_batch) },
    ],
    rows: found,
    empty: "None is known. A job looks for them if it aggregates with millpond.salted and HotKeys.",
  });
}

/** The doctor reads some of the state, so only whoever asks for it gets advice. */
function advice({ ask, name, say }) {
  const found = h("div");
  const look = h("button", { type: "button", class: "quiet", click: async () => {
    look.disabled = true;
    try {
      const { advice: every = [], unseen = [] } = await ask(`jobs/${segment(name)}/advice`);
      found.replaceChildren(...every.map(oneAdvice), ...unseen.map((each) => h("p", { class: "warning" }, each)));
      if (!every.length) found.append(h("p", { class: "empty" }, "There is nothing to change."));
      say(`${number(every.length)} pieces of advice`);
    } catch (wrong) {
      if (wrong.name !== "AbortError") found.replaceChildren(errorBox(wrong));
    }
    look.disabled = false;
  } }, "Ask the doctor");
  return [h("p", {}, look, " ", h("small", {}, "It reads some of the state, for a few seconds.")), found];
}

const oneAdvice = (each) => h("article", { class: each.ignored === null ? "alert" : "alert silenced" },
  h("h3", {}, each.title), h("p", {}, badge(each.rule, each.ignored === null ? "update" : "unknown"), each.ignored !== null && ` ignored: ${each.ignored}`),
  facts([["Where", each.place], ["Evidence", each.evidence], ["Costs", each.cost], ["Change", each.change]]));
