// A spec as YAML: each mapping and each list in lines of its own. The service reads YAML, also with other formatting.

const INDENT = "  ";
const PLAIN = /^[A-Za-z][\w./-]*( [\w./-]+)*$/; // nothing in such a text has a meaning in YAML, except the words below
const WORDS = /^(y|n|yes|no|on|off|true|false|null)$/i;
// Characters that JSON leaves as they are, and that YAML does not allow or reads as line breaks.
const ESCAPED = /[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]/g;

/** Return the YAML text of a spec. */
export function writeYaml(spec) {
  return isFilled(spec) ? `${mappingLines(spec, "").join("\n")}\n` : "{}\n";
}

function mappingLines(mapping, indent) {
  return Object.entries(mapping).flatMap(([key, value]) => {
    const name = `${indent}${scalar(key)}:`;
    if (isFilled(value) && !isShort(value)) return [name, ...blockOf(value, indent + INDENT)];
    return [`${name} ${inline(value)}`];
  });
}

function blockOf(value, indent) {
  if (!Array.isArray(value)) return mappingLines(value, indent);
  return value.flatMap((item) => {
    if (!isFilled(item) || isShort(item)) return [`${indent}- ${inline(item)}`];
    const [first, ...rest] = blockOf(item, indent + INDENT);
    return [`${indent}- ${first.trimStart()}`, ...rest];
  });
}

/** Return whether a value is a list of names or numbers that fits into one line. */
function isShort(value) {
  return Array.isArray(value) && !value.some((item) => isFilled(item) || /\s/.test(item)) && inline(value).length < 80;
}

function isFilled(value) {
  return value !== null && typeof value === "object" && Object.keys(value).length > 0;
}

function inline(value) {
  if (Array.isArray(value)) return `[${value.map(inline).join(", ")}]`;
  return value !== null && typeof value === "object" ? "{}" : scalar(value);
}

function scalar(value) {
  if (typeof value === "string")
    return PLAIN.test(value) && !WORDS.test(value) ? value : JSON.stringify(value).replace(ESCAPED, escaped);
  const text = JSON.stringify(value);
  return typeof value === "number" && /^-?\d+e/.test(text) ? text.replace("e", ".0e") : text;
}

function escaped(character) {
  return `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`;
}
