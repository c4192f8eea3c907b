// A chart of the last minutes: stacked areas over time, drawn as SVG.

import { drawing, element } from "./elements.js";
import { duration, number } from "./format.js";

const WIDTH = 360, HEIGHT = 150;
const LEFT = 44, RIGHT = 8, TOP = 8, BOTTOM = 20; // margins, which hold the labels of the axes
const LONGEST_GAP_S = 3; // between two samples that are joined

const SPANS_S = [60, 120, 300]; // of the time axis, which grows with what there is to show

export const LONGEST_SPAN_S = SPANS_S.at(-1);

export class Chart {
  /** `series`: names, from the bottom up. `top`: where the axis ends, else where the values want it. */
  constructor({ title, unit, series, top = null }) {
    this.element = element("figure", "chart");
    this.#top = top;
    const caption = element("figcaption", "", title);
    caption.append(element("span", "unit", unit));
    this.#svg = drawing("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
    this.#legend = series.map((name, place) => {
      const entry = element("span", `entry series-${place}`, name);
      const value = entry.appendChild(element("b"));
      return { name, entry, value };
    });
    const legend = element("div", "legend");
    legend.append(...this.#legend.map(({ entry }) => entry));
    this.element.append(caption, this.#svg, legend);
    this.#title = `${title}, ${unit}`;
    this.#svg.addEventListener("pointermove", (event) => this.#point(event));
    this.#svg.addEventListener("pointerleave", () => this.#point(null));
  }

  #top;
  #title;
  #svg;
  #legend;
  #samples = [];
  #marks = [];
  #now = 0;
  #span = SPANS_S[0];
  #pointed = null; // a time that the pointer shows

  /** `samples`: {t, values}, values null where nothing is known. `marks`: {t, label}. Times in seconds. */
  draw(samples, marks, now) {
    this.#samples = samples;
    this.#marks = marks;
    this.#now = now;
    const age = now - samples[0].t;
    this.#span = SPANS_S.find((span) => span >= age) ?? LONGEST_SPAN_S;
    this.#redraw();
  }

  #redraw() {
    const totals = this.#samples.map(({ values }) => (values ?? []).reduce((a, b) => a + b, 0));
    const top = this.#top ?? roundUp(Math.max(2, ...totals));
    const parts = [...axes(top, this.#span), ...this.#areas(top)];
    for (const { t, label } of this.#marks) {
      if (t < this.#now - this.#span) continue;
      const mark = this.#upright(t, "mark");
      mark.append(drawing("title", {}, label));
      parts.push(mark);
    }
    const shown = this.#shownSample();
    if (this.#pointed !== null && shown) parts.push(this.#upright(shown.t, "pointer"));
    this.#svg.replaceChildren(...parts);
    this.#tell(shown);
  }

  #areas(top) {
    const y = (value) => TOP + (1 - Math.min(value / top, 1)) * (HEIGHT - TOP - BOTTOM);
    const parts = [];
    for (const run of runs(this.#samples)) {
      let lower = run.map(() => 0);
      for (const place of this.#legend.keys()) {
        const upper = run.map(({ values }, index) => lower[index] + values[place]);
        const points = (heights) => run.map(({ t }, i) => `${this.#x(t)} ${y(heights[i]).toFixed(1)}`);
        const outline = [...points(upper), ...points(lower).reverse()];
        parts.push(drawing("path", { class: `area series-${place}`, d: `M${outline.join("L")}Z` }));
        lower = upper;
      }
    }
    return parts;
  }

  #x(t) {
    const share = 1 - (this.#now - t) / this.#span;
    return (LEFT + Math.max(0, share) * (WIDTH - LEFT - RIGHT)).toFixed(1);
  }

  #upright(t, name) {
    const x = this.#x(t);
    return drawing("line", { class: name, x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM });
  }

  #point(event) {
    this.#pointed = null;
    if (event) {
      const { left, width } = this.#svg.getBoundingClientRect();
      const x = ((event.clientX - left) / width) * WIDTH;
      this.#pointed = this.#now - (1 - (x - LEFT) / (WIDTH - LEFT - RIGHT)) * this.#span;
    }
    this.#redraw();
  }

  #shownSample() {
    const t = this.#pointed;
    if (t === null) return this.#samples.at(-1);
    const distance = (sample) => Math.abs(sample.t - t);
    return this.#samples.reduce((a, b) => (distance(b) < distance(a) ? b : a), this.#samples[0]);
  }

  #tell(sample) {
    const told = this.#legend.map(({ name, value }, place) => {
      value.textContent = sample?.values ? number(sample.values[place]) : "–";
      return `${name} ${value.textContent}`;
    });
    this.#svg.setAttribute("aria-label", `${this.#title}: ${told.join(", ")}`);
  }
}

/** Runs of samples that have values and are close together. */
function runs(samples) {
  const found = [];
  for (const sample of samples.filter(({ values }) => values)) {
    const before = found.at(-1)?.at(-1);
    if (before && sample.t - before.t < LONGEST_GAP_S) found.at(-1).push(sample);
    else found.push([sample]);
  }
  return found;
}

/** 1, 2 or 5 times a power of ten. */
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((factor) => factor * power).find((round) => round >= value);
}

function axes(top, span) {
  const parts = [];
  for (const share of [0, 0.5, 1]) {
    const y = TOP + (1 - share) * (HEIGHT - TOP - BOTTOM);
    parts.push(drawing("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y, y2: y }));
    const label = { class: "label", x: LEFT - 6, y: y + 4, "text-anchor": "end" };
    parts.push(drawing("text", label, number(share * top)));
  }
  for (const share of [0, 0.2, 0.4, 0.6, 0.8, 1]) {
    const x = WIDTH - RIGHT - share * (WIDTH - LEFT - RIGHT);
    const anchor = share === 0 ? "end" : "middle";
    const label = { class: "label", x, y: HEIGHT - 5, "text-anchor": anchor };
    parts.push(drawing("text", label, share === 0 ? "now" : `−${duration(share * span)}`));
  }
  return parts;
}
