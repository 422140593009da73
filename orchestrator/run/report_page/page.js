"use strict";
// Curves. Everything that came from a run reaches the page through textContent or the chart's
// numbers: no text is ever parsed as HTML.
const data = JSON.parse(document.getElementById("data").textContent);
const runs = data.runs;
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const byId = (id) => document.getElementById(id);

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

const kLight = ["#2563c9", "#d9662b", "#16897a", "#a23fa8", "#8a6d00", "#c2344d", "#4d5b74", "#5b8c1f"];
const kDark = ["#6aa5ff", "#ff9a5c", "#45c7b0", "#d98be0", "#e0b94b", "#ff7b92", "#a9b6cc", "#a5d160"];
const color = (i) => (dark.matches ? kDark : kLight)[i % kLight.length];
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function format(value) {
  if (value === null || value === undefined || !isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e5 || size < 1e-3) {
    if (size >= 1e5 && size < 1e15) {
      const unit = size >= 1e12 ? [1e12, "T"] : size >= 1e9 ? [1e9, "G"] : size >= 1e6 ? [1e6, "M"] : [1e3, "k"];
      return String(Number((value / unit[0]).toPrecision(3))) + unit[1];
    }
    return value.toExponential(1).replace("e+", "e");
  }
  return String(Number(value.toPrecision(4)));
}

// What is shown, in this order; a panel without data is left out.
const kPanels = [
  {title: "Reward", names: ["rollout/raw_reward"], about: "mean score of a step's samples"},
  {title: "Evaluation", pattern: /^eval\/.*\/accuracy$/, about: "accuracy", points: true},
  {title: "Response length", names: ["rollout/response_len/mean"], about: "mean tokens of a response"},
  {title: "Truncated", names: ["rollout/truncated_ratio"], about: "share of responses that hit the limit"},
  {title: "Entropy", names: ["rollout/entropy"], about: "nats a token"},
  {title: "KL, trainer against rollout", names: ["train/train_rollout_kl"], about: "0 where both compute alike"},
  {title: "Log-prob difference", names: ["train/train_rollout_logprob_abs_diff/mean", "train/train_rollout_logprob_abs_diff/max"],
   about: "trainer against rollout, absolute"},
  {title: "PPO KL", names: ["train/ppo_kl"], about: "mean of old minus new log-prob"},
  {title: "Clipped", names: ["train/pg_clipfrac"], about: "share of tokens clipped by the loss"},
  {title: "Loss", names: ["train/loss"], about: "of a step"},
  {title: "KL from the reference", names: ["train/ref_kl"], about: "mean estimate over trained tokens"},
  {title: "Correction", names: ["train/tis_clipfrac", "train/rejected_ratio", "train/opsm_clipfrac"], about: "shares of tokens outside the bounds, left out, masked"},
  {title: "Gradient norm", names: ["train/grad_norm"], about: "before clipping"},
  {title: "Learning rate", names: ["train/lr"], about: ""},
  {title: "Groups without signal", names: ["rollout/zero_std_group_ratio"], about: "share whose samples all scored alike"},
  {title: "Tokens a second", names: ["perf/rollout_tokens_per_s", "perf/train_tokens_per_s"], about: "while sampling, while training"},
  {title: "Memory", names: ["perf/rss_bytes"], about: "bytes resident"},
];
const kTiming = ["perf/rollout_s", "perf/reward_s", "perf/train_s", "perf/sync_s", "perf/eval_s", "perf/other_s"];

const allNames = [...new Set(runs.flatMap((run) => Object.keys(run.series)))];
const charts = [];      // {graph, lines, redraw}
const hidden = new Set();  // runs switched off in the legend
let smooth = 1;
let syncing = false;

// The lines of a panel: every run that has the metric.
function linesOf(names) {
  const lines = [];
  names.forEach((name, n) => runs.forEach((run, r) => {
    if (run.series[name]) lines.push({run: r, name, n, series: run.series[name]});
  }));
  return lines;
}

const firstStep = Math.min(...runs.flatMap((run) => run.steps.slice(0, 1)));
const lastStep = Math.max(...runs.flatMap((run) => run.steps.slice(-1)));

// Rows [step, value...] over the union of steps. With bands a value is [low, mean, high]. The first
// and the last step of all runs are always among them, so that all charts have one axis.
function rowsOf(lines, bands) {
  const rows = new Map();
  const nothing = () => lines.map(() => (bands ? [null, null, null] : null));
  if (lines.length > 0) [firstStep, lastStep].forEach((step) => rows.set(step, [step, ...nothing()]));
  lines.forEach((line, i) => {
    const run = runs[line.run];
    run.steps.forEach((step, k) => {
      const mean = line.series.mean[k];
      if (mean === null) return;
      if (!rows.has(step)) rows.set(step, [step, ...nothing()]);
      const low = line.series.low ? line.series.low[k] : mean;
      const high = line.series.high ? line.series.high[k] : mean;
      rows.get(step)[i + 1] = bands ? [low, mean, high] : mean;
    });
  });
  return [...rows.values()].sort((a, b) => a[0] - b[0]);
}

function lineColor(line) { return color(runs.length > 1 ? line.run : line.n); }
// The run where there are several, and what of the metric's name the panel's metrics do not share.
function lineLabel(line, lines, stacked) {
  const split = lines.map((l) => l.name.split("/"));
  const own = line.name.split("/");
  let begin = 0;
  let end = own.length;
  while (begin < end && split.every((name) => name[begin] === own[begin])) ++begin;
  while (end > begin && split.every((name) => name[name.length - own.length + end - 1] === own[end - 1])) --end;
  const parts = [];
  if (runs.length > 1 && !stacked) parts.push(runs[line.run].name);
  const rest = own.slice(begin, end).join("/").replace(/(_tokens_per)?_s$/, "");
  if (rest !== "") parts.push(rest);
  return parts.join(" ");
}

function card(parent, title, about, wide) {
  const box = make("div", wide && runs.length === 1 ? "card wide" : "card");
  box.append(make("h3", "", title), make("p", "about", about));
  const values = make("div", "values");
  const plot = make("div", "plot");
  box.append(values, plot);
  parent.append(box);
  return {values, plot};
}

// The values of row k; without k, the last one of each line.
function showValues(element, lines, rows, stacked, k) {
  element.replaceChildren();
  const row = rows[k === undefined ? rows.length - 1 : k];
  element.append(make("span", "dim", (k === undefined ? "last, step " : "step ") + row[0]));
  lines.forEach((line, i) => {
    if (hidden.has(line.run)) return;
    let value = row[i + 1];
    for (let at = rows.length - 1; k === undefined && at >= 0 && middle(value) === null; --at) value = rows[at][i + 1];
    const shown = make("span", "", (lineLabel(line, lines, stacked) + " " + format(middle(value))).trim());
    shown.style.color = stacked ? color(line.n) : lineColor(line);
    element.append(shown);
  });
}

// The mean of a [low, mean, high].
function middle(value) { return Array.isArray(value) ? value[1] : value; }

function addChart(parent, panel, lines, stacked) {
  const bands = !stacked && lines.some((line) => line.series.low);
  const rows = rowsOf(lines, bands);
  if (!rows.some((row) => row.some((value, i) => i > 0 && middle(value) !== null))) return;
  const {values, plot} = card(parent, panel.title, panel.about, stacked);
  const kDash = [null, [5, 3], [2, 2], [8, 3, 2, 3]];
  const sparse = panel.points || rows.length <= 2;
  const look = () => ({
    colors: lines.map((line) => (stacked ? color(line.n) : lineColor(line))),
    gridLineColor: css("--grid"), axisLineColor: css("--line"),
  });
  const perLine = {};
  lines.forEach((line, i) => {
    perLine["s" + i] = {strokePattern: runs.length > 1 && !stacked ? kDash[line.n % kDash.length] : null};
  });
  const graph = new Dygraph(plot, rows, {
    labels: ["step", ...lines.map((_, i) => "s" + i)], series: perLine, customBars: bands, stackedGraph: !!stacked,
    connectSeparatedPoints: true, legend: "never", strokeWidth: 1.6, fillAlpha: stacked ? 0.5 : 0.15,
    highlightCircleSize: 3, drawPoints: !!sparse, pointSize: 3, rollPeriod: smooth, xRangePad: 4, yRangePad: 8,
    includeZero: !!stacked,
    axes: {
      y: {axisLabelFormatter: (v) => format(v), axisLabelWidth: 52, pixelsPerLabel: 32},
      x: {axisLabelFormatter: (v) => (Number.isInteger(v) ? String(v) : ""), pixelsPerLabel: 60},
    },
    ...look(),
    highlightCallback: (event, x, points, k) => showValues(values, lines, rows, stacked, k),
    unhighlightCallback: () => showValues(values, lines, rows, stacked),
    drawCallback: (g, initial) => { if (!initial) followZoom(g); },
  });
  showValues(values, lines, rows, stacked);
  charts.push({graph, lines, refresh: () => {
    graph.updateOptions({...look(), rollPeriod: smooth, visibility: lines.map((line) => !hidden.has(line.run))});
    showValues(values, lines, rows, stacked);
  }});
}

// All charts show the same steps.
function followZoom(source) {
  if (syncing) return;
  const zoomed = source.isZoomed("x");
  const dateWindow = zoomed ? source.xAxisRange() : null;
  byId("unzoom").hidden = !zoomed;
  syncing = true;
  for (const {graph} of charts) {
    if (graph !== source) graph.updateOptions({dateWindow});
  }
  syncing = false;
}

function refreshCharts() {
  syncing = true;
  charts.forEach((chart) => chart.refresh());
  syncing = false;
}

function addPanels() {
  const grid = byId("charts");
  const shown = new Set(["perf/step_s", ...kTiming]);
  for (const panel of kPanels) {
    const names = panel.names || allNames.filter((name) => panel.pattern.test(name)).sort();
    names.forEach((name) => shown.add(name));
    addChart(grid, panel, linesOf(names), false);
  }
  runs.forEach((run, r) => {
    const lines = kTiming.map((name, n) => ({run: r, name, n, series: run.series[name]})).filter((l) => l.series);
    const suffix = runs.length > 1 ? " of " + run.name : "";
    addChart(grid, {title: "Time of a step" + suffix, about: "seconds, stacked"}, lines, true);
  });
  const others = allNames.filter((name) => !shown.has(name)).sort();
  byId("more").hidden = others.length === 0;
  byId("more").addEventListener("toggle", () => {
    others.splice(0).forEach((name) => addChart(byId("more-charts"), {title: name, about: ""}, linesOf([name]), false));
  });
}

function addSummary() {
  const table = make("table");
  const head = make("tr");
  ["Run", "steps", "first reward", "last reward", "best reward", "response tokens", "seconds a step", "time"].forEach((t) => head.append(make("th", "", t)));
  table.append(head);
  for (const run of runs) {
    const row = make("tr");
    const s = run.summary;
    [run.name, s.steps, format(s.first_reward), format(s.last_reward), format(s.best_reward), format(s.response_len),
     format(s.step_s), s.time].forEach((t) => row.append(make("td", "", t)));
    table.append(row);
  }
  byId("summary").append(table);
  if (runs.some((run) => run.bucket > 1)) {
    byId("summary").append(make("p", "hint",
      "Long runs are drawn as means over " + Math.max(...runs.map((r) => r.bucket)) + " steps with a band from least to greatest; metrics.jsonl has every value."));
  }
}

function addLegend() {
  if (runs.length < 2) return;
  runs.forEach((run, r) => {
    const label = make("label");
    const box = make("input");
    box.type = "checkbox";
    box.checked = true;
    box.addEventListener("change", () => { box.checked ? hidden.delete(r) : hidden.add(r); refreshCharts(); });
    const swatch = make("span", "swatch");
    const paint = () => { swatch.style.background = color(r); };
    paint();
    dark.addEventListener("change", paint);
    label.append(box, swatch, make("span", "", run.name));
    byId("legend").append(label);
  });
}

function addTexts() {
  byId("title").textContent = data.title;
  byId("subtitle").textContent = runs.map((run) => run.directory).join(", ") + " · drawn " + data.time;
  for (const run of runs) {
    const name = runs.length > 1 ? run.name : "";
    if (run.experiment) byId("experiment").append(make("h3", "", name), make("pre", "", run.experiment));
    const table = make("table", "log");
    for (const event of run.events) {
      const row = make("tr");
      const step = event.step === null ? "" : "step " + event.step;
      [event.time, step, event.kind, event.text].forEach((t) => row.append(make("td", "", t)));
      table.append(row);
    }
    if (run.events.length > 0) byId("events").append(make("h3", "", name), table);
  }
  byId("events-box").hidden = byId("events").childElementCount === 0;
  byId("experiment-box").hidden = byId("experiment").childElementCount === 0;
}

addTexts();
addSummary();
addLegend();
addPanels();
byId("smooth").addEventListener("change", (event) => { smooth = Number(event.target.value); refreshCharts(); });
byId("unzoom").addEventListener("click", () => { charts.length && charts[0].graph.resetZoom(); });
dark.addEventListener("change", refreshCharts);
