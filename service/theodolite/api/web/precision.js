// How precisely a contrast's AUROC will be known, from the numbers of prompts of its sets.

import { listOf, mappingOf, partsOfSource } from "./spec-changes.js";

const NEAR = 0.8; // the AUROC whose interval is shown
const BUILTIN = { harmful: 256, harmless: 256, everyday: 256, nouns: 100 }; // prompts

/**
 * Return half the width of the 95 % interval of an AUROC of two sets with so many prompts.
 * Its standard error is that of Hanley and McNeil (1982), Radiology 143:29–36.
 */
export function halfWidth(positive, negative, auroc = NEAR) {
  const square = auroc ** 2;
  const ofPositive = (positive - 1) * (auroc / (2 - auroc) - square);
  const ofNegative = (negative - 1) * (2 * square / (1 + auroc) - square);
  return 1.96 * Math.sqrt((auroc * (1 - auroc) + ofPositive + ofNegative) / (positive * negative));
}

/** Return a sentence on the AUROC of two sets with so many prompts; empty if a number is unknown, or below 2. */
export function precisionOf(positive, negative) {
  if (!(positive >= 2 && negative >= 2)) return "";
  const width = halfWidth(positive, negative).toLocaleString("en", { maximumSignificantDigits: 1 });
  return `${positive} + ${negative} prompts: an AUROC near ${NEAR} will be known to about ± ${width} (95 %, Hanley and McNeil 1982).`;
}

/** Return the number of prompts of a set in a spec whose activations are stored; null if only the cluster knows it. */
export function countOf(spec, name) {
  const set = mappingOf(mappingOf(spec.prompts)[name]), [kind, rest] = partsOfSource(set.source);
  const all = kind === "builtin" ? BUILTIN[rest] : kind === "inline" ? listOf(set.texts).length : null;
  if (all == null || Object.keys(mappingOf(set.where)).length) return null;
  const { keep } = mappingOf(spec.capture);
  return Math.min(all - (set.skip ?? 0), set.limit ?? Infinity, keep ?? Infinity);
}
