"""The small changes: an operator, a comparison, a constant, a condition or a statement of a function."""

import ast
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


@dataclass(frozen=True)
class Change:
    """One change of a file.

    Attributes:
        file: path in the repository.
        number: which of the file's changes it is.
        first_line, last_line: the lines of the changed statement.
        description: the changed expression before and after.
    """

    file: str
    number: int
    first_line: int
    last_line: int
    description: str


def draw_changes(root: Path, folders: Sequence[str], number: int, seed: int) -> list[Change]:
    """Return as many changes of each folder, drawn without replacement; the same ones for the same seed and code."""
    draw, drawn = random.Random(seed), []
    for index, folder in enumerate(folders):
        files = sorted((root / folder).rglob("*.py"))
        all_changes = [change for file in files for change in changes_of(root, file)]
        share = number * (index + 1) // len(folders) - number * index // len(folders)
        drawn += draw.sample(all_changes, share)
    return drawn


def changes_of(root: Path, file: Path) -> list[Change]:
    """Return all changes of a file."""
    tree = ast.parse(file.read_text())
    found = []
    for number, (statement, describe, _) in enumerate(_sites(tree)):
        last = statement.body[0].lineno - 1 if hasattr(statement, "body") else statement.end_lineno
        found.append(
            Change(file.relative_to(root).as_posix(), number, statement.lineno, last or statement.lineno, describe)
        )
    return found


def changed(source: str, change: Change) -> str:
    """Return the source with the change."""
    tree = ast.parse(source)
    _, _, apply = list(_sites(tree))[change.number]
    apply()
    return ast.unparse(ast.fix_missing_locations(tree))


def _sites(tree: ast.Module) -> Iterator[tuple[ast.stmt, str, Callable[[], None]]]:
    """Yield the statement, the description and the application of each change of the functions of a module."""
    for function in _functions(tree):
        for statement in _statements(function.body):
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                yield statement, f"{_text(statement)} → pass", lambda one=statement: _drop(one)
            for node in _expressions(statement):
                yield from ((statement, *one) for one in _of_expression(node))


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """Yield the functions and methods of a module, without those inside of others."""
    for node in tree.body:
        for one in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(one, ast.FunctionDef):
                yield one


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        for name in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(statement, name, []))
        for handler in getattr(statement, "handlers", []):
            yield from _statements(handler.body)


def _expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield the expressions of a statement, without its blocks, annotations and the texts of errors."""
    left_out = {"body", "orelse", "finalbody", "handlers", "annotation", "returns", "decorator_list", "args"}
    if isinstance(statement, ast.Raise):
        return
    waiting = [value for name, value in ast.iter_fields(statement) if name not in left_out]
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, list):
            waiting = node + waiting
        elif isinstance(node, ast.AST) and not isinstance(node, ast.JoinedStr):
            yield node
            waiting = [value for _, value in ast.iter_fields(node)] + waiting


def _of_expression(node: ast.AST) -> Iterator[tuple[str, Callable[[], None]]]:
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in OPERATORS and not _has_text(node):
        yield _replacement(node, "op", OPERATORS[type(node.op)]())
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in OPERATORS:
        yield _replacement(node, "ops", [OPERATORS[type(node.ops[0])](), *node.ops[1:]])
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield _replacement(node, "op", ast.Not(), operand=ast.UnaryOp(ast.Not(), node.operand))
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield _replacement(node, "value", not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield _replacement(node, "value", node.value + 1)
    elif isinstance(node, ast.IfExp):
        yield _replacement(node, "test", ast.UnaryOp(ast.Not(), node.test))


def _replacement(node: ast.AST, name: str, value: object, **others: object) -> tuple[str, Callable[[], None]]:
    """Return the description of a replaced field, and the function that replaces it."""

    def apply() -> None:
        for field, new in {name: value, **others}.items():
            setattr(node, field, new)

    before, old = _text(node), {field: getattr(node, field) for field in (name, *others)}
    apply()
    after = _text(ast.fix_missing_locations(node))
    for field, was in old.items():
        setattr(node, field, was)
    return f"{before} → {after}", apply


def _has_text(node: ast.BinOp | ast.BoolOp) -> bool:
    return any(isinstance(one, ast.JoinedStr | ast.Constant) and not _is_number(one) for one in ast.walk(node))


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _drop(statement: ast.Expr) -> None:
    statement.value = ast.Constant(None)


def _text(node: ast.AST) -> str:
    return ast.unparse(node).replace("\n", " ")[:80]
