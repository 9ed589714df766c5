"""Quality of streamed video, from the player's log: Waterloo Streaming QoE Database IV.

Each of the 1350 videos was played over one network trace and rated from 0 to 100. Its log has a
row for each of seven chunks of four seconds. A video is a sample here, with summaries of its log.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from colonnade.data.blocks import Labels
from colonnade.data.datasets.description import Dataset, DatasetEntry, assemble, cut_table, words

__all__ = ["ENTRIES", "GOOD_FROM"]

GOOD_FROM = 60.0
"""Mean opinion from which quality counts as good: the scale calls 60 to 80 "good"."""

PATHS = (
    "video_qoe/waterloo_sqoe4/data.csv.gz",
    "video_qoe/waterloo_sqoe4/streaming_logs.csv.gz",
)
SOURCE = "Duanmu et al. (2020), Waterloo Streaming QoE Database IV, IEEE DataPort, CC BY 4.0"

VIDEO_COLUMNS = {
    "content": words("""
        content encoding_profile framerate psnr_mean psnr_min ssim_mean ssim_min vmaf_mean
        vmaf_min vmaf_last quantiser_mean
    """),
    "network": words("""
        trace bitrate_mean bitrate_min bitrate_max bitrate_last bitrate_deviation
        bitrate_trend megabytes
    """),
    "player": words("""
        device abr initial_stall stall_count stall_total stall_longest height_mean
        height_min best_share switch_count
    """),
}
# In the order of the thesis; the first two replace its complexity indices.
QOE_COLUMNS = {
    "content": ("bits_per_pixel", "quantiser_mean", "framerate"),
    "player": ("stall_count", "initial_stall", "stall_total"),
    "network": ("bitrate_mean", "bitrate_trend", "bitrate_last"),
}


def read_videos(directory: Path) -> pd.DataFrame:
    """A row for each video: its conditions, its rating and summaries of its log.

    A wait before the first chunk is the initial stall; waits before later chunks are stalls
    during play. The trend is the share of switches upwards less that of switches downwards.
    """
    videos = pd.read_csv(directory / PATHS[0], dtype={"trace": str}).set_index("streaming_log")
    logs = pd.read_csv(directory / PATHS[1])
    logs["bits_per_pixel"] = (
        logs["video_bitrate"] * 1000 / (logs["width"] * logs["height"] * logs["framerate"])
    )
    by_video = logs.groupby("streaming_log", sort=False)
    logs["first"] = by_video.cumcount() == 0
    logs["stall"] = logs["rebuffering_duration"].where(~logs["first"], 0.0)
    logs["stalled"] = logs["stall"] > 0
    logs["switch"] = np.sign(by_video["representation_index"].diff().fillna(0))
    logs["switched"] = logs["switch"] != 0
    by_video = logs.groupby("streaming_log", sort=False)
    summary: dict[str, Any] = {
        "framerate": by_video["framerate"].first(),
        "bits_per_pixel": by_video["bits_per_pixel"].mean(),
        "quantiser_mean": by_video["qp"].mean(),
        "bitrate_mean": by_video["video_bitrate"].mean(),
        "bitrate_min": by_video["video_bitrate"].min(),
        "bitrate_max": by_video["video_bitrate"].max(),
        "bitrate_last": by_video["video_bitrate"].last(),
        "bitrate_deviation": by_video["video_bitrate"].std(ddof=0),
        "bitrate_trend": by_video["switch"].sum() / (by_video.size() - 1),
        "megabytes": by_video["chunk_size"].sum() / 1e6,
        "initial_stall": by_video["rebuffering_duration"].first(),
        "stall_count": by_video["stalled"].sum(),
        "stall_total": by_video["stall"].sum(),
        "stall_longest": by_video["stall"].max(),
        "height_mean": by_video["height"].mean(),
        "height_min": by_video["height"].min(),
        "best_share": by_video["is_best"].mean(),
        "switch_count": by_video["switched"].sum(),
        "vmaf_last": by_video["vmaf"].last(),
    }
    for measure in ("psnr", "ssim", "vmaf"):
        summary[f"{measure}_mean"] = by_video[measure].mean()
        summary[f"{measure}_min"] = by_video[measure].min()
    return videos.join(pd.DataFrame(summary), how="left", validate="one_to_one")


def video_ids(videos: pd.DataFrame) -> np.ndarray[Any, Any]:
    return ("video-" + videos.index.str.removesuffix(".csv")).to_numpy(object)


def load_video_qoe(entry: DatasetEntry, directory: Path) -> Dataset:
    """Predict the mean opinion of a video; the player, where the viewer sits, has the ratings."""
    videos = read_videos(directory)
    ids = video_ids(videos)
    labels = Labels(ids=ids, values=videos["mos"].to_numpy(np.float64), name="mos")
    return assemble(entry, cut_table(videos, ids, VIDEO_COLUMNS), labels)


def load_qoe(entry: DatasetEntry, directory: Path) -> Dataset:
    """Tell good quality from poor with nine features, after a thesis's task.

    The thesis's own data set, with 450 videos, was not available. Its features are used where the
    logs have them. The logs lack its temporal and spatial complexity indices; bits per pixel and
    the mean quantiser replace them, since both tell how hard a picture is to code. The thesis gives
    no threshold; here a mean opinion of 60 or more is good, which 71.6 % of the videos reach.
    """
    videos = read_videos(directory)
    ids = video_ids(videos)
    good = (videos["mos"] >= GOOD_FROM).to_numpy(np.int64)
    labels = Labels(ids=ids, values=good, name="good")
    return assemble(entry, cut_table(videos, ids, QOE_COLUMNS), labels, classes=("poor", "good"))


ENTRIES = (
    DatasetEntry(
        name="video_qoe",
        summary="Mean opinion of streamed videos, from content, network and player",
        task="regression",
        parties=tuple(VIDEO_COLUMNS),
        label_holder="player",
        num_samples=1350,
        source=SOURCE,
        paths=PATHS,
        load=load_video_qoe,
    ),
    DatasetEntry(
        name="qoe",
        summary="Good or poor video quality from nine features (like a thesis's, other data)",
        task="binary",
        parties=tuple(QOE_COLUMNS),
        label_holder="player",
        num_samples=1350,
        source=SOURCE,
        paths=PATHS,
        load=load_qoe,
    ),
)
