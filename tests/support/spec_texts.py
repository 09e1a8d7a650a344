"""Specs as users write them, and small changes to them."""

import yaml

from theodolite.spec import SurveySpec
from theodolite.spec_file import parse_spec

MODEL = "model: {id: org/name}\n"
PAIR = """
prompts:
  harmful: {source: "builtin:harmful"}
  harmless: {source: "builtin:harmless"}
"""
NOUNS = "prompts: {nouns: {source: 'builtin:nouns'}}\n"
SURVEY = f"{MODEL}{PAIR}contrasts: {{refusal: {{positive: harmful, negative: harmless}}}}\n"

FULL = """
name: refusal
model: {id: org/name, revision: main, dtype: float32, attention: eager, trust_remote_code: true}
prompts:
  harmful: {source: "file:advbench.csv", column: goal, draw: {test_size: 0.2, random_state: 42}, limit: 64}
  harmless: {source: "hub:org/data", split: test, where: {input: ""}, template: chat, system: Be brief}
  long: {source: "builtin:nouns", template: "Say {prompt}", positions: all}
capture:
  sites: [resid_mid, resid_pre]
  layers: [3, 0]
  positions: [-1, -5]
  batch_tokens: 512
  shard_prompts: 8
  template_date: 2024-12-31
contrasts:
  refusal: {positive: harmful, negative: harmless, paired: false}
analyses: [curves]
"""


def parse(text: str) -> SurveySpec:
    return parse_spec(yaml.safe_load(text))


def prompts(settings: str) -> str:
    return f"{MODEL}prompts: {{goals: {{source: 'builtin:nouns', {settings}}}}}\n"


def capture(settings: str) -> str:
    return f"{SURVEY}capture: {{{settings}}}\n"
