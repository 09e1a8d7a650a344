// The estimated cost of a survey, which the cluster computes.

import { cards, element, fill, table } from "./elements.js";
import { countOf, precisionOf } from "./precision.js";
import { request } from "./service.js";
import { mappingOf } from "./spec-changes.js";

const WAITING = "The cluster estimates the cost, which takes about half a minute…";
const UNITS = { bytes: [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]], time: [["h", 3600], ["min", 60], ["s", 1]] };

/** Show in an element the estimated cost of the spec that `readSpec` returns, or why there is none. */
export function showEstimate(node, readSpec, signal) {
  return fill(node, signal, async () => {
    const spec = await readSpec();
    return draw(await readEstimate(spec, signal), spec);
  }, WAITING);
}

async function readEstimate(spec, signal) {
  const headers = { "Content-Type": "application/json" };
  for (;;) {
    const options = { method: "POST", body: JSON.stringify(spec), headers, signal };
    const answer = await request("/v1/spec/estimate", options).catch((error) => {
      if (error.status === 422) error.title = "The survey is not possible";
      throw error;
    });
    if (answer.status !== 202) return answer.json();
    await new Promise((resolve) => setTimeout(resolve, 1000 * (answer.headers.get("Retry-After") || 2)));
    signal.throwIfAborted();
  }
}

function draw(estimate, spec) {
  const sets = Object.values(estimate.sets);
  const sum = (name) => sets.reduce((total, set) => total + set[name], 0);
  const millions = sum("prompts") / 1e6;
  const ofKind = ([kind, about]) => about.gpus_per_replica
    ? [kind, about.gpus_per_replica, short(about.gpu_hours_per_million_prompts * millions), short(about.dollars_per_million_prompts * millions)]
    : [kind, about.why, "", ""];
  return [
    element("h2", "Estimated cost"),
    cards([
      ["prompts", count(sum("prompts"))],
      ["tokens", count(sum("tokens"))],
      ["computed tokens", count(sum("computed_tokens"))],
      ["stored activations", `at most ${inUnit(estimate.stored_bytes_at_most, UNITS.bytes)}`],
      ["memory of a replica", inUnit(estimate.replica_memory_bytes, UNITS.bytes)],
    ]),
    ...drawPrecision(estimate, spec),
    ...(estimate.example ? drawExample(estimate.example) : []),
    element("h3", "Time and bytes"),
    table(["part", "about, on a core", "stored", "about, on an H200"], rowsOfParts(estimate), "Time and bytes of each part", [1, 2, 3]),
    table(["GPU", "GPUs per replica", "GPU hours", "US dollars"], Object.entries(estimate.on_gpus_about).map(ofKind), "Cost by kind of GPU", [1, 2, 3]),
    element("p.soft.small", `All numbers are estimates, and bytes are those before compression. Analyses use all cores; only the capture and effects use a GPU. Tokens were counted by ${estimate.tokens_counted_by}; those that prompts share are computed once.`),
    ...(estimate.warnings ?? []).map((warning) => element("p.warn", warning)),
  ];
}

/** Return how precisely the AUROC of each contrast will be known whose numbers of prompts the form does not know. */
function drawPrecision({ sets }, spec) {
  const stored = (name) => countOf(spec, name) ?? Math.min(sets[name]?.prompts ?? 0, mappingOf(spec.capture).keep ?? Infinity);
  return Object.entries(mappingOf(spec.contrasts)).flatMap(([name, { positive, negative }]) => {
    const isKnown = [positive, negative].every((set) => countOf(spec, set) !== null);
    const text = isKnown ? "" : precisionOf(stored(positive), stored(negative));
    return text ? [element("p.small", `${name}: ${text}`)] : [];
  });
}

/** Return a prompt as the model reads it, with the measured tokens marked; that of the built-in harmful set after a click. */
function drawExample({ set, parts, is_cut: isCut, is_harmful: isHarmful }) {
  const visible = (text) => text.replaceAll("\n", "↵\n");
  const drawn = parts.map(({ text, is_measured: isMeasured }) => (isMeasured ? element("mark", visible(text)) : visible(text)));
  const prompt = element("pre.prompt", { tabindex: 0, role: "region", "aria-label": `First prompt of ${set}` }, isCut && "…", drawn);
  const title = element("h3", `First prompt of ${set}, as the model reads it`);
  const note = element("p.soft.small", "The measured token is ", element("mark", "marked"), "; ↵ is a line break.");
  return [title, note, isHarmful ? element("details", element("summary", "Show the text, which is harmful"), prompt) : prompt];
}

function rowsOfParts(estimate) {
  const time = (seconds) => (seconds == null ? "" : seconds < 1 ? "under 1 s" : inUnit(seconds, UNITS.time));
  const row = ([name, { seconds, bytes }]) =>
    [name, time(seconds["one CPU core"]), inUnit(bytes, UNITS.bytes), time(seconds["one H200 GPU"])];
  const others = Object.entries(estimate.on_request_about).map(([name, part]) => [`${name} (not requested)`, part]);
  return [...Object.entries(estimate.parts_about), ...others].map(row);
}

function count(value) {
  return value.toLocaleString("en");
}

function short(value) {
  return value.toLocaleString("en", { maximumSignificantDigits: 2 });
}

function inUnit(value, units) {
  const [unit, size] = units.find(([, one]) => value >= one) ?? units.at(-1);
  return `${short(value / size)} ${unit}`;
}
