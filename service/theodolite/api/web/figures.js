// Figures: the service says what they show, Plotly draws them, and each can be taken away.

import { element, problem } from "./elements.js";
import { csvOf, offer, offerPicture } from "./export.js";
import { onPage, watchPaper } from "./paper.js";

const shown = new Set();
let library = null;

const MARK = "#ff5fa2"; // is seen on every colour of the scales

/** Let Plotly come while the numbers are still asked for: it is read in the background, which takes longest. */
export function fetchPlotly() {
  loadPlotly().catch(() => {}); // who draws says what is wrong
}

/** Return Plotly, which comes once for all figures. */
function loadPlotly() {
  library ??= new Promise((resolve, reject) => {
    const script = element("script", { src: "/static/plotly.min.js" });
    script.addEventListener("load", () => resolve(window.Plotly));
    script.addEventListener("error", () => {
      library = null;
      reject(new Error("The library that draws figures could not be fetched."));
    });
    document.head.append(script);
  });
  return library;
}

/** A figure with its caption and buttons; what it shows may change. */
export class Frame {
  /**
   * @param {string} caption What stands above it, and what it is called where it cannot be seen.
   * @param {AbortSignal} signal Says when its view has ended.
   * @param {{name?: string, heading?: string, height?: number}} options Name of its files; height until it is drawn.
   */
  constructor(caption, signal, { name = "figure", heading = "h3", height = 400 } = {}) {
    this.signal = signal;
    this.name = name;
    this.figure = null;
    this.caption = element(heading, {}, caption);
    this.plot = element("div", { class: "plot", role: "img", "aria-label": caption });
    this.plot.style.minHeight = `${height}px`;
    this.said = element("div", { class: "said" });
    this.data = element("button", { type: "button", onclick: () => this.offerData() }, "Data");
    this.picture = element("button", { type: "button", onclick: () => this.offerPicture() }, "Picture");
    this.nameButtons(caption);
    this.node = element(
      "figure",
      {},
      element("figcaption", {}, this.caption, element("span", { class: "takes" }, this.data, this.picture)),
      this.said,
      this.plot,
    );
    this.offer(false);
  }

  /** Call the figure something else. */
  rename(caption, name) {
    this.name = name;
    this.caption.textContent = caption;
    this.plot.setAttribute("aria-label", caption);
    this.nameButtons(caption);
  }

  /** Draw what `load` brings; what an earlier call still waits for is forgotten. */
  async show(load) {
    this.pending?.abort();
    this.pending = new AbortController();
    const signal = AbortSignal.any([this.signal, this.pending.signal]);
    this.plot.setAttribute("aria-busy", "true");
    if (!this.figure) this.say(element("p", { class: "soft waiting" }, "Drawing…"));
    try {
      const [figure, Plotly] = await Promise.all([load(signal), loadPlotly()]);
      if (signal.aborted) return;
      this.Plotly = Plotly;
      this.figure = figure;
      await this.draw();
    } catch (error) {
      if (signal.aborted) return;
      this.clear();
      this.say(problem(error, () => this.show(load)));
    }
    this.plot.removeAttribute("aria-busy");
  }

  /** Draw the figure on the page as it is now. */
  async draw() {
    if (!shown.has(this)) {
      shown.add(this);
      this.signal.addEventListener("abort", () => this.clear());
    }
    this.offer(true);
    if (this.figure.data.some((trace) => trace.type.endsWith("3d")) && !hasWebGL()) {
      this.say(
        element(
          "p",
          { class: "nothing" },
          "This figure can be turned in space, for which it needs WebGL, and this browser does not offer that. Its numbers are behind the button “Data”.",
        ),
      );
      this.plot.style.minHeight = "";
      return;
    }
    this.say();
    const config = { responsive: true, displayModeBar: false, showTips: false };
    await this.Plotly.react(this.plot, this.figure.data, this.layout(), config);
    this.plot.style.minHeight = "";
    this.drawn?.();
  }

  /** Return the layout on the page as it is now: captions stand above figures here. */
  layout() {
    const made = onPage(this.figure, this.width);
    if (made.title?.text) {
      delete made.title;
      made.margin.t = 8;
    }
    return made;
  }

  /** Call `act` with Plotly's event whenever it happens on the figure, which may be drawn later. */
  listen(event, act) {
    this.drawn = () => {
      this.plot.removeAllListeners(event);
      this.plot.on(event, act);
    };
  }

  /** Frame one cell of a map and say what it holds; null takes the frame away. */
  mark(x, y, text = "") {
    if (!this.figure) return;
    const box = { type: "rect", x0: x - 0.5, x1: x + 0.5, y0: y - 0.5, y1: y + 0.5, line: { color: MARK, width: 3 } };
    const words = { x, y, text, showarrow: false, yshift: 18, bgcolor: getComputedStyle(this.plot).backgroundColor };
    this.Plotly.relayout(
      this.plot,
      x === null ? { shapes: [], annotations: [] } : { shapes: [box], annotations: [words] },
    );
  }

  offerData() {
    offer(`${this.name}.csv`, csvOf(this.figure), "text/csv");
  }

  offerPicture() {
    offerPicture(this.Plotly, this.figure, this.name, Math.max(600, this.width));
  }

  /** Pixels to draw on; one that cannot be seen yet has as many as Plotly would give it. */
  get width() {
    return this.plot.clientWidth || 700;
  }

  nameButtons(caption) {
    this.data.setAttribute("aria-label", `Data of “${caption}” as CSV`);
    this.picture.setAttribute("aria-label", `Picture of “${caption}” as SVG`);
  }

  offer(isReady) {
    this.data.disabled = this.picture.disabled = !isReady;
  }

  say(...words) {
    this.said.replaceChildren(...words);
  }

  clear() {
    shown.delete(this);
    if (this.plot.classList.contains("js-plotly-plot")) this.Plotly.purge(this.plot);
    this.figure = null;
    this.offer(false);
  }
}

function hasWebGL() {
  const canvas = document.createElement("canvas");
  return Boolean(canvas.getContext("webgl2") || canvas.getContext("webgl"));
}

watchPaper(() => shown.forEach((frame) => frame.draw()));
