// The live view: asks for the daemon's state every second, and draws it.

import { ask } from "./api.js";
import { Chart, LONGEST_SPAN_S } from "./chart.js";
import { byId, element } from "./elements.js";
import { bytes, duration } from "./format.js";
import { Deaths } from "./deaths.js";

const INTERVAL_MS = 1000;
const TIMEOUT_MS = 5000;
const MIB = 2 ** 20;

// `values` of a view are null where there are none yet.
const CHARTS = [
  {
    title: "Generated tokens",
    unit: "per second",
    series: ["generated"],
    values: (view) => [view.tokens_per_second.generated],
  },
  {
    title: "Prompt tokens",
    unit: "per second",
    series: ["prompt"],
    values: (view) => [view.tokens_per_second.prompt],
  },
  {
    title: "Queue",
    unit: "sequences",
    series: ["running", "waiting"],
    values: ({ queue }) => [queue.running, queue.waiting],
  },
  {
    title: "KV cache",
    unit: "% of its blocks",
    series: ["used", "cached prefixes"],
    top: 100,
    values: ({ kv_blocks: blocks }) =>
      blocks && [blocks.used, blocks.cached].map((count) => (100 * count) / blocks.total),
  },
  {
    title: "Time of a step",
    unit: "ms",
    series: ["prepare", "execute", "output", "bubble"],
    values: ({ step }) =>
      step && [step.prepare_ms, step.execute_ms, step.output_ms, step.bubble_ms],
  },
  {
    title: "Memory",
    unit: "MiB resident",
    series: ["worker", "other actors"],
    values: ({ actors }) => {
      const sum = (chosen) => chosen.reduce((total, each) => total + each.memory_bytes, 0) / MIB;
      const isWorker = (actor) => actor.name === "gpu_worker";
      return [sum(actors.filter(isWorker)), sum(actors.filter((each) => !isWorker(each)))];
    },
  },
].map((kind) => ({ kind, chart: new Chart(kind), samples: [] }));

const deaths = new Deaths();
let last = null; // the newest view
let wake = () => {};

/** Begins to look. `onRefused` gets each error; after one that asks for a key nothing is asked before `lookNow`. */
export async function startLive(onRefused) {
  byId("charts").append(...CHARTS.map(({ chart }) => chart.element));
  document.addEventListener("visibilitychange", () => wake());
  for (;;) {
    const error = await look();
    if (error) onRefused(error);
    await new Promise((resolve) => {
      wake = resolve;
      if (error?.status !== 401) setTimeout(resolve, INTERVAL_MS);
    });
    while (document.hidden) await new Promise((resolve) => (wake = resolve));
  }
}

/** Looks again at once. */
export const lookNow = () => wake();

async function look() {
  let view = null;
  let error = null;
  try {
    const response = await ask("status", { signal: AbortSignal.timeout(TIMEOUT_MS) });
    view = await response.json();
  } catch (problem) {
    error = problem;
  }
  const now = performance.now() / 1000;
  if (view) {
    deaths.look(view, now);
    showState(view.state, view.not_ready);
    showActors(view);
    showFacts(view);
    last = view;
  } else {
    showState("unreachable", error.message);
  }
  draw(view, now);
  return error;
}

function draw(view, now) {
  for (const { kind, chart, samples } of CHARTS) {
    samples.push({ t: now, values: view && kind.values(view) });
    while (samples[0].t < now - LONGEST_SPAN_S) samples.shift();
    chart.draw(samples, deaths.marks, now);
  }
}

function showState(state, reason) {
  const shown = byId("state");
  if (shown.textContent !== state) shown.textContent = state; // screen readers tell of changes
  shown.className = `state-${state}`;
  const notice = byId("notice");
  notice.hidden = !reason;
  if (notice.textContent !== reason) notice.textContent = reason ?? "";
}

function showActors(view) {
  byId("actors").replaceChildren(...view.actors.map((actor) => row(actor, view)));
}

function row(actor, view) {
  const made = element("tr");
  const state = element("td");
  state.append(element("span", `state state-${actor.state}`, actor.state));
  const restarts = Object.entries(actor.restarts).map(([how, count]) => `${count} ${how}`);
  made.append(
    element("th", "", actor.name),
    state,
    element("td", "figure", actor.pid ?? "–"),
    element("td", "figure", cpuShare(actor, view)),
    element("td", "figure", bytes(actor.memory_bytes)),
    element("td", "figure", restarts.join(", ") || "0"),
  );
  made.firstChild.scope = "row";
  return made;
}

/** Of one core, since the last look. */
function cpuShare(actor, view) {
  const before = last?.actors.find(({ name, pid }) => name === actor.name && pid === actor.pid);
  const seconds = view.uptime_s - (last?.uptime_s ?? 0);
  if (!before || seconds <= 0) return "–";
  return `${Math.round((100 * (actor.cpu_seconds - before.cpu_seconds)) / seconds)} %`;
}

function showFacts(view) {
  byId("model").textContent = view.model;
  const facts = [`${view.name}, up ${duration(view.uptime_s)}, pillion ${view.version}`];
  if (view.device !== null) {
    facts.push(`on ${view.device}`);
    facts.push(`weights ${bytes(view.weights_bytes)}, KV cache ${bytes(view.kv_bytes)}`);
    facts.push(`at most ${view.queue.max_running} sequences at once`);
  }
  byId("facts").textContent = facts.join(" · ");
}
