"""Write the table of families: the page families.md, and its source swept.json in the package.

The facts are those of the records and of the newest result of `benchmarks/families.py`. Run this program when either
changes: python docs/families.py
"""

import json
import re
from pathlib import Path
from typing import Any

from theodolite_jobs.models.supported import SWEPT, SupportedFamily, supported_families

ROOT = Path(__file__).parents[1]
PAGE = Path(__file__).with_suffix(".md")
_TABLE = re.compile(r"(?<=<!-- table -->\n\n).*", flags=re.DOTALL)
_NOT_A_REASON = re.compile(r"^\w+: (the model family '\S+' is not in the table, and |'\S+' cannot be surveyed: )?")


def swept() -> str:
    """Return the short form of the newest sweep, as JSON with one line for each family that it could build."""
    newest = max(ROOT.glob("benchmarks/results/families_*.json"), key=lambda path: path.stem.rpartition("_")[2])
    families = json.loads(newest.read_text(encoding="utf-8"))["families"]
    tried = {name: facts for name, facts in families.items() if "known_by" in facts or _is_unsupported(facts)}
    lines = [f"{json.dumps(name)}: {json.dumps(_short(name, facts))}" for name, facts in tried.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _is_unsupported(facts: dict[str, Any]) -> bool:
    """Return whether the family is refused; another error may be due to the sizes of the tiny checkpoint."""
    reason = str(facts.get("refused", ""))
    return reason.startswith("UnsupportedModelError") and "(RuntimeError)" not in reason


def _short(name: str, facts: dict[str, Any]) -> dict[str, Any]:
    if "refused" in facts:
        reason = re.split("; (?:add a record|use a model of a family)", _NOT_A_REASON.sub("", facts["refused"]))[0]
        return {"refused": re.sub(r"^'\S+'", "it", reason)}
    return {
        **({"text_model": facts["text_model"]} if facts["text_model"] != name else {}),
        **({"sites": facts["sites"]} if facts["known_by"] == "probe" else {}),
        "tensor_parallel": facts["tensor_parallel"] is True,
        "half_precision": [dtype for dtype in ("bfloat16", "float16") if isinstance(facts[dtype], dict)],
    }


def page() -> str:
    """Return the page with the table of today's records and of swept.json."""
    lines = [("family", "known by, and what works"), ("---", "---")]
    lines += [(row.family, f"{row.known_by}: {_about(row)}") for row in supported_families()]
    rows = [" | ".join(cell.replace("|", "\\|") for cell in line) for line in lines]
    return _TABLE.sub(lambda _: "".join(f"| {row} |\n" for row in rows), PAGE.read_text(encoding="utf-8"))


def _about(row: SupportedFamily) -> str:
    """Return one cell in place of the columns that the command prints, because a phone is narrow."""
    if row.known_by == "refused":
        return row.note
    half = row.half_precision or ()
    works = {
        "heads": row.heads,
        "words": row.words,
        "tensor parallel": row.tensor_parallel,
        "half precision": len(half) == 2,
        f"half precision only in {', '.join(half)}": len(half) == 1,
    }
    parts = [", ".join(name for name, does in works.items() if does) or "only the sites"]
    if row.half_precision is None:
        parts.append("tensor parallel and half precision were not tried")
    if row.missing_sites:
        parts.append(f"without {', '.join(f'`{site}`' for site in row.missing_sites)}")
    return "; ".join(filter(None, [*parts, row.note]))


if __name__ == "__main__":
    SWEPT.write_text(swept(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
