// Changes that the form makes to a spec. Each change keeps all fields that it does not name.

/** The spec with which the form starts. */
export const EXAMPLE = {
  model: { id: "smollm2-135m-instruct" },
  prompts: { harmful: { source: "builtin:harmful" }, harmless: { source: "builtin:harmless" } },
  contrasts: { refusal: { positive: "harmful", negative: "harmless", paired: true } },
  analyses: ["curves", "separation", "permutations"],
};

/** Return a value if it is a mapping, or else an empty one: the user may write any value in the text. */
export function mappingOf(value) {
  return isMapping(value) ? value : {};
}

/** Return a value if it is a list, or else an empty one. */
export function listOf(value) {
  return Array.isArray(value) ? value : [];
}

/** Return a copy of a mapping with other values; a value that is undefined removes its key. */
export function withValues(mapping, values) {
  const entries = Object.entries({ ...mappingOf(mapping), ...values });
  return Object.fromEntries(entries.filter(([, value]) => value !== undefined));
}

/** Return a copy of a spec with other values in a part of it, such as `["prompts", "harmful"]`. */
export function withPart(spec, [key, ...rest], values) {
  const part = mappingOf(spec)[key];
  return withValues(spec, { [key]: rest.length ? withPart(part, rest, values) : withValues(part, values) });
}

/** Return a copy of a mapping with another name for a key, at the same position. */
export function renamed(mapping, from, to) {
  return Object.fromEntries(Object.entries(mapping).map(([key, value]) => [key === from ? to : key, value]));
}

/** Return a copy of a spec with another name for a prompt set, also where contrasts and `words.nouns` name it. */
export function renamedSet(spec, from, to) {
  const sides = (contrast) =>
    Object.fromEntries(["positive", "negative"].filter((side) => contrast[side] === from).map((side) => [side, to]));
  const contrasts = Object.entries(mappingOf(spec.contrasts)).map(([name, contrast]) =>
    [name, isMapping(contrast) ? { ...contrast, ...sides(contrast) } : contrast]);
  const result = { ...spec, prompts: renamed(mappingOf(spec.prompts), from, to) };
  if (contrasts.length) result.contrasts = Object.fromEntries(contrasts);
  return mappingOf(spec.words).nouns === from ? withPart(result, ["words"], { nouns: to }) : result;
}

/** Return the kind of a source and the rest after the colon, such as `["builtin", "harmful"]`. */
export function partsOfSource(source) {
  const [kind, rest = ""] = String(source ?? "").split(/:(.*)/s, 2);
  return [kind, rest];
}

/** Return prompts as lines of a text; null if a prompt is not exactly one line, so lines would change the prompts. */
export function linesOf(prompts) {
  const isLine = (prompt) => typeof prompt === "string" && prompt.trim() !== "" && !/[\r\n]/.test(prompt);
  return prompts.every(isLine) ? prompts.join("\n") : null;
}

/** Return the prompts of a text with one prompt in each line; blank lines are left out. */
export function promptsOf(lines) {
  return lines.split("\n").filter((line) => line.trim() !== "");
}

/** Return a name that a mapping does not have: `base`, or `base-2` and so on. */
export function freeName(mapping, base) {
  for (let number = 1; ; number++) {
    const name = number === 1 ? base : `${base}-${number}`;
    if (!Object.hasOwn(mapping, name)) return name;
  }
}

function isMapping(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}
