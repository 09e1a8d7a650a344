// Figures: the service returns them, Plotly draws them, and each can be downloaded.

import { element, problem } from "./elements.js";
import { csvOf, download, downloadPicture } from "./export.js";
import { onAxes, onPage, watchPaper } from "./paper.js";
import { switchesOf } from "./switches.js";

const shown = new Set();
let library = null;

const MARK = "#ff5fa2"; // visible on every colour of the scales

/** Start to load Plotly in the background, since it takes longer than the numbers. */
export function fetchPlotly() {
  loadPlotly().catch(() => {}); // the figure that needs Plotly shows the error
}

/** Return Plotly, which is loaded once for all figures. */
function loadPlotly() {
  library ??= new Promise((resolve, reject) => {
    const script = element("script", { src: "/static/plotly.min.js" });
    script.addEventListener("load", () => resolve(window.Plotly));
    script.addEventListener("error", () => {
      library = null;
      reject(new Error("The browser could not load Plotly, the library that draws figures. Try again."));
    });
    document.head.append(script);
  });
  return library;
}

/** A frame with a caption and buttons; its figure may change. */
export class Frame {
  /**
   * @param {string} caption Text above the figure, and its name for screen readers.
   * @param {AbortSignal} signal Aborts when the view closes.
   * @param {{name?: string, heading?: string, height?: number}} options Name of its files; height before it is drawn.
   */
  constructor(caption, signal, { name = "figure", heading = "h3", height = 400 } = {}) {
    this.signal = signal;
    this.name = name;
    this.figure = null;
    this.listeners = {};
    this.caption = element(heading, caption);
    this.plot = element("div.plot", { role: "img", "aria-label": caption });
    this.plot.style.minHeight = `${height}px`;
    this.message = element("div.message");
    this.switches = element("div.axes");
    this.data = element("button", { type: "button", onclick: () => this.downloadData() }, "Data");
    this.picture = element("button", { type: "button", onclick: () => this.downloadFigure() }, "Picture");
    this.nameButtons(caption);
    this.node = element("figure",
      element("figcaption", this.caption, element("span.takes", this.data, this.picture)),
      this.message,
      this.switches,
      this.plot,
    );
    this.enableButtons(false);
  }

  /** Change the caption and the name of the files. */
  rename(caption, name) {
    this.name = name;
    this.caption.textContent = caption;
    this.plot.setAttribute("aria-label", caption);
    this.nameButtons(caption);
  }

  /** Draw the figure that `load` returns; a request of an earlier call is aborted. */
  async show(load) {
    this.pending?.abort();
    this.pending = new AbortController();
    const signal = AbortSignal.any([this.signal, this.pending.signal]);
    this.plot.setAttribute("aria-busy", "true");
    if (!this.figure) this.showMessage(element("p.soft.waiting", "Drawing…"));
    try {
      const [figure, Plotly] = await Promise.all([load(signal), loadPlotly()]);
      if (signal.aborted) return;
      this.Plotly = Plotly;
      this.figure = figure;
      this.switches.replaceChildren(...switchesOf(figure, () => this.draw()));
      await this.draw();
    } catch (error) {
      if (signal.aborted) return;
      this.clear();
      this.showMessage(problem(error, () => this.show(load)));
    }
    this.plot.removeAttribute("aria-busy");
  }

  /** Draw the figure in the current colours and width of the page. */
  async draw() {
    if (!shown.has(this)) {
      shown.add(this);
      this.signal.addEventListener("abort", () => this.clear());
    }
    this.enableButtons(true);
    if (this.figure.data.some((trace) => trace.type.endsWith("3d")) && !hasWebGL()) {
      this.showMessage(
        element("p.nothing", "This figure in three dimensions needs WebGL, which this browser does not support. The button “Data” downloads its numbers."),
      );
      this.plot.style.minHeight = "";
      return;
    }
    this.showMessage();
    const config = { responsive: true, displayModeBar: false, showTips: false };
    const layout = this.layout();
    // Plotly measures the element, and forgets the height of the layout, if what stands beside the figure changes.
    Object.assign(this.plot.style, { height: `${layout.height}px`, minHeight: "" });
    await this.Plotly.react(this.plot, onAxes(this.figure), layout, config);
    if (this.plot.clientWidth && this.plot.clientWidth !== this.plot._fullLayout.width) await this.Plotly.relayout(this.plot, { autosize: true });
    for (const [event, act] of Object.entries(this.listeners)) {
      this.plot.removeAllListeners(event);
      this.plot.on(event, act);
    }
  }

  /** Return the layout in the current colours and width, without the title, since the page has a caption. */
  layout() {
    const made = onPage(this.figure, this.width);
    if (made.title?.text) {
      delete made.title;
      made.margin.t = 8;
    }
    return made;
  }

  /** Call `act` at each Plotly event of this name; the figure may be drawn later. */
  listen(event, act) {
    this.listeners[event] = act;
  }

  /** Frame one cell of a map and label it with a text; null removes the frame. */
  mark(x, y, text = "") {
    if (!this.figure) return;
    const box = { type: "rect", x0: x - 0.5, x1: x + 0.5, y0: y - 0.5, y1: y + 0.5, line: { color: MARK, width: 3 } };
    const label = { x, y, text, showarrow: false, yshift: 18, bgcolor: getComputedStyle(this.plot).backgroundColor };
    const drawn = x === null ? { shapes: [], annotations: [] } : { shapes: [box], annotations: [label] };
    this.Plotly.relayout(this.plot, drawn);
  }

  downloadData() {
    download(`${this.name}.csv`, csvOf(this.figure), "text/csv");
  }

  downloadFigure() {
    const model = document.querySelector("main h1")?.textContent;
    const texts = this.figure.layout.meta?.about ?? [this.caption.textContent, model].filter(Boolean);
    downloadPicture(this.Plotly, this.figure, this.name, Math.max(600, this.width), texts);
  }

  /** Width in pixels; a hidden figure has the default width of Plotly. */
  get width() {
    return this.plot.clientWidth || 700;
  }

  nameButtons(caption) {
    this.data.setAttribute("aria-label", `Data of “${caption}” as CSV`);
    this.picture.setAttribute("aria-label", `Picture of “${caption}” as SVG`);
  }

  enableButtons(isReady) {
    this.data.disabled = this.picture.disabled = !isReady;
  }

  showMessage(...nodes) {
    this.message.replaceChildren(...nodes);
  }

  clear() {
    shown.delete(this);
    if (this.plot.classList.contains("js-plotly-plot")) this.Plotly.purge(this.plot);
    this.figure = null;
    this.plot.style.height = "";
    this.switches.replaceChildren();
    this.enableButtons(false);
  }
}

function hasWebGL() {
  const canvas = document.createElement("canvas");
  return Boolean(canvas.getContext("webgl2") || canvas.getContext("webgl"));
}

watchPaper(() => shown.forEach((frame) => frame.draw()));
