// Plots over time by uPlot, and heat maps. Each says in words what it shows, and has its numbers as a table.
import { bytes, grid, h, moment, number, plain, seconds } from "./dom.js";

const UNITS = { bytes, seconds, count: number };
const HEIGHT = 180;
// Steps of an axis of bytes: round in the units in which they are written.
const BYTES = Array.from({ length: 50 }, (_, power) => 2 ** power);
/** A moment on an axis, in UTC: days where steps are days, seconds where they are seconds. */
function clock(stamp, step) {
  const [day, time] = new Date(stamp * 1000).toISOString().split("T");
  return step >= 86_400 ? day.slice(5) : time.slice(0, step < 60 ? 8 : 5);
}

const colours = (names) => names.map((name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());

/** Series over time. times: milliseconds; series: [{label, values, bars}]; unit: bytes, seconds or count. */
export function plot({ title, unit, times, series, signal }) {
  const write = UNITS[unit];
  const known = series.flatMap((each) => each.values.filter((value) => value !== null && value !== undefined));
  if (!known.length) return h("figure", {}, h("figcaption", {}, title), h("p", { class: "empty" }, "Nothing is known of it."));
  const last = (values) => values.findLast((value) => value !== null && value !== undefined);
  const words = series.map((each) => `${each.label}: now ${write(last(each.values))}, at most ${write(Math.max(...each.values.filter((value) => value != null)))}`);
  const canvas = h("div", { class: "plot", role: "img", "aria-label": plain(`${title}. ${words.join(". ")}.`) });
  const data = [times.map((time) => time / 1000), ...series.map((each) => each.values.map((value) => value ?? null))];
  let chart = null;
  const draw = () => {
    chart?.destroy();
    const [line, second, ink, rule] = colours(["line", "second", "soft", "rule"]);
    const axis = { stroke: ink, grid: { stroke: rule, width: 1 }, ticks: { stroke: rule, width: 1 }, font: "12px system-ui" };
    chart = new uPlot({
      width: Math.max(220, canvas.clientWidth),
      height: HEIGHT,
      tzDate: (stamp) => uPlot.tzDate(new Date(stamp * 1000), "Etc/UTC"),
      scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), high > 0 ? high * 1.1 : 1] } },
      axes: [{ ...axis, space: 70, values: (_, ticks, __, ___, step) => ticks.map((tick) => clock(tick, step)) }, { ...axis, size: 80, incrs: unit === "bytes" ? BYTES : undefined, values: (_, ticks) => ticks.map(write) }],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false } },
      series: [{}, ...series.map((each, place) => ({
        label: each.label,
        stroke: place ? second : line,
        fill: each.bars ? line : undefined,
        width: 1.5,
        points: { show: !each.bars && times.length < 60 },
        paths: each.bars ? uPlot.paths.bars({ size: [0.8, 40] }) : undefined,
              }))],
    }, data, canvas);
  };
  const watcher = new ResizeObserver(() => requestAnimationFrame(() => canvas.isConnected && (!chart || chart.width !== Math.max(220, canvas.clientWidth)) && draw()));
  watcher.observe(canvas);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", draw, { signal });
  signal.addEventListener("abort", () => { watcher.disconnect(); chart?.destroy(); });
  const legend = series.length > 1 && h("p", { class: "legend" }, series.map((each, place) => h("span", { class: place ? "second" : "line" }, each.label)));
  return h("figure", {}, h("figcaption", {}, title), legend, canvas, numbers(title, write, times, series));
}

function numbers(title, write, times, series) {
  const details = h("details", {}, h("summary", {}, "Numbers"));
  details.addEventListener("toggle", () => {
    if (!details.open || details.querySelector("table")) return;
    const rows = times.map((_, place) => times.length - 1 - place).slice(0, 100);
    details.append(grid({
      caption: `${title}, the newest ${rows.length}`,
      columns: [{ label: "At", cell: (place) => moment(times[place]) }, ...series.map((each) => ({ label: each.label, numeric: true, cell: (place) => write(each.values[place]) }))],
      rows,
    }));
  });
  return details;
}

const SHADES = 8;
const CELLS = 512;

/** Sizes of partitions as shades. Of more partitions than can be shown, each cell is the largest of several. */
export function heatMap({ label, partitions, sizes }) {
  const most = Math.max(...sizes, 1);
  const several = Math.ceil(sizes.length / CELLS);
  const cells = [];
  for (let place = 0; place < sizes.length; place += several) {
    const group = sizes.slice(place, place + several);
    const largest = Math.max(...group);
    const name = group.length > 1 ? `${partitions[place]}–${partitions[place + group.length - 1]}` : `${partitions[place]}`;
    cells.push(h("span", { class: `cell heat${Math.round((largest / most) * (SHADES - 1))}`, title: `Partition ${name}: ${bytes(largest)}` }));
  }
  const largest = sizes.map((size, place) => ({ partition: partitions[place], size })).toSorted((a, b) => b.size - a.size).slice(0, 5);
  const words = `${label}: ${sizes.length} partitions; the largest is ${largest[0]?.partition} with ${bytes(largest[0]?.size)}`;
  return h("figure", {}, h("figcaption", {}, label), h("div", { class: "heat", role: "img", "aria-label": plain(words) }, cells),
    grid({ caption: `The largest partitions of ${label}`, columns: [
      { label: "Partition", cell: (row) => row.partition },
      { label: "State", numeric: true, cell: (row) => bytes(row.size) },
      { label: "Share", numeric: true, cell: (row) => `${((100 * row.size) / Math.max(1, sizes.reduce((sum, size) => sum + size, 0))).toFixed(1)} %` },
    ], rows: largest }));
}
