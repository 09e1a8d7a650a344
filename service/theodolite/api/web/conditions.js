// The conditions on a column of a table, as the field of the column shows them and as a user writes them.

const AND = " & ";
const QUOTED = '"(?:[^"]|"")*"'; // inside quotes, a quote is written twice
const CONDITION = new RegExp(`^\\s*(\\w+)\\s*(!=|<=|>=|=|<|>|~)\\s*(?:(${QUOTED})\\s*|(.*))$`, "s");
const PARTS = new RegExp(`\\s*((?:[!<>]=|[=<>~])?\\s*(?:${QUOTED}|.*?))\\s*(?:${AND}|$)`, "gsy");

/** The operators of each kind of column; without an operator, a value has the last one. */
const OPERATORS = { number: ["!=", "<=", ">=", "<", ">", "="], boolean: ["!=", "="], text: ["!=", "=", "~"] };

/** Return the column of a condition. */
export function columnOf(condition) {
  return condition.match(/^\s*(\w+)/)?.[1];
}

/** Return what the field of a column shows for its conditions. */
export function shownConditions(conditions, kind) {
  return conditions.map((condition) => shownCondition(condition, kind)).join(AND);
}

/** Return the conditions on a column from what a user wrote in its field. */
export function writtenConditions(name, written, kind) {
  const parts = [...written.matchAll(PARTS)].map(([, part]) => part).filter(Boolean);
  return parts.map((part) => `${name}${operatorOf(part, kind) ? "" : OPERATORS[kind].at(-1)}${part}`);
}

/** Return an example of what a user can write in the field of a column. */
export function exampleOf(kind) {
  return { number: "= < > …", boolean: "true or false", text: "contains" }[kind];
}

function operatorOf(text, kind) {
  return OPERATORS[kind].find((operator) => text.startsWith(operator));
}

function shownCondition(condition, kind) {
  const [, , operator, quoted, bare] = condition.match(CONDITION) ?? [];
  if (!operator) return "";
  const value = quoted?.slice(1, -1).replaceAll('""', '"') ?? bare;
  const isBare = value === value.trim() && !value.startsWith('"') && !value.includes(AND);
  const shown = isBare ? value : `"${value.replaceAll('"', '""')}"`;
  const isImplied = operator === OPERATORS[kind].at(-1) && shown && !operatorOf(shown, kind);
  return isImplied ? shown : `${operator}${shown}`;
}
