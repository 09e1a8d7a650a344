"""The path of a token along the residual stream: angles and ranks by depth, and pictures in three dimensions."""

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

from theodolite.drawing.panels import Line, Panel, panels_figure
from theodolite.drawing.style import (
    COLORBAR,
    DEPTH,
    DEPTH_SCALE,
    MAIN,
    PLAIN,
    SECOND,
    bare_layout,
    depth_ticks,
)
from theodolite.query.words import along_stream
from theodolite.sites import depth_label

_PCA = ["pca_1", "pca_2", "pca_3"]


def trajectory_curves(trajectory: pd.DataFrame) -> go.Figure:
    """Return the angles to the final state and to the next token, and the rank of the next token, by depth.

    Args:
        trajectory: the rows of one token of one sentence.
    """
    stream = along_stream(trajectory)
    depths, labels = stream["depth"].tolist(), _labels(stream)
    mean, sd = stream["vocabulary_angle_mean"], stream["vocabulary_angle_sd"]
    angles = [
        Line("to all tokens", depths, mean, PLAIN, low=mean - sd, high=mean + sd, markers=False, band="mean ± sd"),
        Line("to its final state", depths, stream["angle_to_final"], MAIN),
        Line("to the next token", depths, stream["angle_to_next"], SECOND),
    ]
    rank = Line("rank", depths, stream["rank_of_next"], MAIN)
    panels = [
        Panel("angle, degrees", angles),
        Panel("rank of the next token", [rank], positive=True, logarithmic=True),
    ]
    ticks = depth_ticks(stream.loc[stream["site"] != "resid_final", "depth"])
    return panels_figure(panels, x_title=DEPTH, ticks=ticks, labels=dict(zip(depths, labels, strict=True)))


def trajectory_sphere(trajectory: pd.DataFrame) -> go.Figure:
    """Return the path on a sphere that can be turned, in the first three principal components.

    Args:
        trajectory: the rows of one token of one sentence.
    """
    stream, target = along_stream(trajectory), _target(trajectory)
    share = np.linalg.norm(stream[_PCA].to_numpy(), axis=1)
    hover = [
        f"{label}<br>{length:.0%} of its norm lies in these three dimensions"
        for label, length in zip(_labels(stream), share, strict=True)
    ]
    path = _on_sphere(stream)
    traces = [_globe(), _path(path, stream, hover), _mark(_on_sphere(target)[0], target)]
    hidden = {"visible": False, "range": [-1.05, 1.05]}
    scene = {axis: hidden for axis in ("xaxis", "yaxis", "zaxis")} | {"aspectmode": "cube"}
    layout = {**bare_layout(560), "margin": {"l": 0, "r": 0, "t": 10, "b": 0}, "showlegend": False}
    return go.Figure(traces, {**layout, "scene": {**scene, "camera": {"eye": _facing(path.mean(axis=0))}}})


def _target(trajectory: pd.DataFrame) -> pd.DataFrame:
    """Return the row of the next token's unembedding vector."""
    return trajectory[trajectory["site"] == "unembedding"]


def _labels(stream: pd.DataFrame) -> list[str]:
    return [
        "final" if site == "resid_final" else depth_label(depth)
        for site, depth in zip(stream["site"], stream["depth"], strict=True)
    ]


def _on_sphere(rows: pd.DataFrame) -> NDArray[np.float64]:
    points = rows[_PCA].to_numpy(dtype=np.float64)
    scaled: NDArray[np.float64] = points / np.linalg.norm(points, axis=1, keepdims=True)
    return scaled


def _globe() -> go.Scatter3d:
    """Return meridians and parallels of the sphere as thin lines."""
    turn = np.linspace(0, 2 * np.pi, 73)
    circles = [
        (np.cos(a) * np.cos(turn), np.sin(a) * np.cos(turn), np.sin(turn)) for a in np.arange(0, np.pi, np.pi / 6)
    ]
    for height in np.sin(np.arange(-np.pi / 3, np.pi / 2, np.pi / 6)):
        radius = np.sqrt(1 - height**2)
        circles.append((radius * np.cos(turn), radius * np.sin(turn), np.full_like(turn, height)))
    x, y, z = (np.concatenate([np.append(circle[axis], np.nan) for circle in circles]) for axis in range(3))
    line = {"color": PLAIN, "width": 1}
    x, y, z = (values.round(4).tolist() for values in (x, y, z))
    return go.Scatter3d(x=x, y=y, z=z, mode="lines", line=line, opacity=0.35, hoverinfo="skip")


def _path(points: NDArray[np.float64], stream: pd.DataFrame, hover: list[str]) -> go.Scatter3d:
    texts, depths = ["" for _ in hover], stream["depth"].tolist()
    texts[0], texts[-1] = stream["token"].iloc[0].strip(), "final"
    return go.Scatter3d(
        x=points[:, 0].tolist(),
        y=points[:, 1].tolist(),
        z=points[:, 2].tolist(),
        mode="lines+markers+text",
        text=texts,
        textposition="top center",
        line={"color": PLAIN, "width": 3},
        marker={"size": 5, "color": depths, "colorscale": DEPTH_SCALE, "colorbar": _depth_bar(depths, hover)},
        customdata=hover,
        hovertemplate="%{customdata}<extra></extra>",
    )


def _depth_bar(depths: list[int], labels: list[str]) -> dict[str, Any]:
    """Return the scale of depth, with five ticks; the label of the last depth is `final`."""
    ticks = sorted({round(index) for index in np.linspace(0, len(depths) - 1, 5)})
    texts = [labels[index].partition("<")[0] for index in ticks]
    title = {"text": "depth", "side": "right"}
    return {**COLORBAR, "len": 0.8, "title": title, "tickvals": [depths[index] for index in ticks], "ticktext": texts}


def _mark(point: NDArray[np.float64], target: pd.DataFrame) -> go.Scatter3d:
    coordinates: dict[str, Any] = {axis: [float(value)] for axis, value in zip("xyz", point, strict=True)}
    text = f"next: {target['next_token'].iloc[0].strip()}"
    marker = {"size": 7, "symbol": "diamond", "color": SECOND}
    return go.Scatter3d(
        **coordinates, mode="markers+text", text=[text], textposition="top center", marker=marker, hoverinfo="text"
    )


def _facing(point: NDArray[np.float64]) -> dict[str, float]:
    """Return the camera position that shows a point of the sphere in front."""
    length = float(np.linalg.norm(point))
    toward = point / length if length > 0 else np.array([1.0, 0.0, 0.0])
    return {axis: float(1.6 * value) for axis, value in zip("xyz", toward, strict=True)}
