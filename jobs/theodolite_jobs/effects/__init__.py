"""Interventions on a loaded model at the last token of its prompts, and what they change."""
