"""561 features of accelerometer and gyroscope windows, after HAPT's ``features_info.txt``.

Meaning, number and order are those of the published features. They are computed here from the raw
signals, so values differ in details that the description leaves open: the phase of the filters, the
exact entropy, the scale of the spectrum.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

__all__ = ["FEATURE_NAMES", "WINDOW", "recording_features"]

Array = np.ndarray[Any, Any]

RATE = 50.0
"""Samples in a second."""
WINDOW = 128
AXES = ("X", "Y", "Z")
NUM_BINS = WINDOW // 2
TINY = 1e-12

TIME_SIGNALS = ("tBodyAcc", "tGravityAcc", "tBodyAccJerk", "tBodyGyro", "tBodyGyroJerk")
SPECTRUM_SIGNALS = ("tBodyAcc", "tBodyAccJerk", "tBodyGyro")
# The published set leaves out the spectrum of the gravity magnitude.
SPECTRUM_MAGNITUDES = ("tBodyAcc", "tBodyAccJerk", "tBodyGyro", "tBodyGyroJerk")
ANGLE_SIGNALS = ("tBodyAcc", "tBodyAccJerk", "tBodyGyro", "tBodyGyroJerk")

BANDS = (
    *((start, start + 8) for start in range(0, 64, 8)),
    *((start, start + 16) for start in range(0, 64, 16)),
    (0, 24),
    (24, 48),
)
PAIRS = ((0, 1), (0, 2), (1, 2))

Named = tuple[str, Array]
"""A feature: its name and its value in every window."""


def recording_features(acceleration: Array, rotation: Array, starts: Array) -> Array:
    """Features of the windows of one recording that begin at ``starts``: (window, feature).

    Both signals are (sample, axis); filters run over the whole recording, so that a window does
    not begin with the filter's own transient.
    """
    signals = derived_signals(acceleration, rotation)
    windows = {name: cut_windows(signal, starts) for name, signal in signals.items()}
    return np.stack([values for _, values in all_features(windows)], axis=1)


def derived_signals(acceleration: Array, rotation: Array) -> dict[str, Array]:
    """Body and gravity acceleration, rotation, and how fast body and rotation change."""
    from scipy.signal import butter, medfilt, sosfiltfilt

    noise = butter(3, 20.0, fs=RATE, output="sos")
    gravity_band = butter(3, 0.3, fs=RATE, output="sos")

    def clean(signal: Array) -> Array:
        smooth = np.stack([medfilt(axis, 3) for axis in signal.T])
        return np.asarray(sosfiltfilt(noise, smooth, axis=1))

    total, gyro = clean(acceleration), clean(rotation)
    gravity = np.asarray(sosfiltfilt(gravity_band, total, axis=1))
    body = total - gravity
    return {
        "tBodyAcc": body,
        "tGravityAcc": gravity,
        "tBodyAccJerk": np.diff(body, axis=1, prepend=body[:, :1]) * RATE,
        "tBodyGyro": gyro,
        "tBodyGyroJerk": np.diff(gyro, axis=1, prepend=gyro[:, :1]) * RATE,
    }


def cut_windows(signal: Array, starts: Array) -> Array:
    """Windows of an (axis, sample) signal as (window, axis, sample)."""
    rows = starts[:, None] + np.arange(WINDOW)
    return signal[:, rows].transpose(1, 0, 2)


def all_features(windows: dict[str, Array]) -> Iterator[Named]:
    """Every feature, in the published order."""
    magnitudes = {
        name: np.linalg.norm(values, axis=1, keepdims=True) for name, values in windows.items()
    }
    for name in TIME_SIGNALS:
        yield from described(name, windows[name], AXES)
        yield from autoregression(name, windows[name], AXES)
        yield from correlations(name, windows[name])
    for name in TIME_SIGNALS:
        yield from described(f"{name}Mag", magnitudes[name], ("",))
        yield from autoregression(f"{name}Mag", magnitudes[name], ("",))
    for name in SPECTRUM_SIGNALS:
        spectrum = spectra(windows[name])
        in_frequency = name.replace("t", "f", 1)
        yield from described(in_frequency, spectrum, AXES)
        yield from shape_of_spectrum(in_frequency, spectrum, AXES)
        yield from band_energies(in_frequency, spectrum)
    for name in SPECTRUM_MAGNITUDES:
        spectrum = spectra(magnitudes[name])
        in_frequency = name.replace("t", "f", 1) + "Mag"
        yield from described(in_frequency, spectrum, ("",))
        yield from shape_of_spectrum(in_frequency, spectrum, ("",))
    yield from angles(windows)


def spectra(windows: Array) -> Array:
    """Magnitudes of the first 64 frequencies."""
    return np.abs(np.fft.rfft(windows, axis=2))[:, :, :NUM_BINS] / WINDOW


def per_axis(signal: str, feature: str, values: Array, axes: tuple[str, ...]) -> Iterator[Named]:
    for number, axis in enumerate(axes):
        yield "-".join(filter(None, (signal, feature, axis))), values[:, number]


def described(signal: str, windows: Array, axes: tuple[str, ...]) -> Iterator[Named]:
    """Statistics of location and spread."""
    ordered = np.sort(windows, axis=2)
    size = windows.shape[2]
    median = (ordered[:, :, (size - 1) // 2] + ordered[:, :, size // 2]) / 2
    strays = np.abs(windows - median[:, :, None])
    share = np.abs(windows) / (np.abs(windows).sum(axis=2, keepdims=True) + TINY)
    statistics = {
        "mean": windows.mean(axis=2),
        "std": windows.std(axis=2),
        "mad": np.median(strays, axis=2),
        "max": ordered[:, :, -1],
        "min": ordered[:, :, 0],
        "sma": np.abs(windows).mean(axis=2).sum(axis=1, keepdims=True),
        "energy": (windows**2).mean(axis=2),
        "iqr": ordered[:, :, (3 * size) // 4] - ordered[:, :, size // 4],
        "entropy": -(share * np.log(share + TINY)).sum(axis=2) / np.log(size),
    }
    for feature, values in statistics.items():
        yield from per_axis(signal, feature, values, ("",) if feature == "sma" else axes)


def autoregression(signal: str, windows: Array, axes: tuple[str, ...]) -> Iterator[Named]:
    """Four autoregression coefficients of each axis, by Burg's method."""
    coefficients = burg(windows, 4)
    for number, axis in enumerate(axes):
        for lag in range(4):
            name = "-".join(filter(None, (signal, f"arCoeff{lag + 1}", axis)))
            yield name, coefficients[:, number, lag]


def burg(windows: Array, order: int) -> Array:
    """Coefficients a_1 ... a_order of x_t + a_1 x_(t-1) + ... = noise, for all windows at once."""
    forward, backward = windows[:, :, 1:], windows[:, :, :-1]
    coefficients = np.ones((*windows.shape[:2], 1))
    for _ in range(order):
        power = (forward**2 + backward**2).sum(axis=2) + TINY
        reflection = (-2 * (forward * backward).sum(axis=2) / power)[:, :, None]
        longer = np.concatenate([coefficients, np.zeros_like(reflection)], axis=2)
        coefficients = longer + reflection * longer[:, :, ::-1]
        forward, backward = (
            (forward + reflection * backward)[:, :, 1:],
            (backward + reflection * forward)[:, :, :-1],
        )
    return coefficients[:, :, 1:]


def correlations(signal: str, windows: Array) -> Iterator[Named]:
    """Correlations between axes; 0 where an axis is constant."""
    centred = windows - windows.mean(axis=2, keepdims=True)
    norms = np.linalg.norm(centred, axis=2)
    for one, other in PAIRS:
        product = (centred[:, one] * centred[:, other]).sum(axis=1)
        values = product / (norms[:, one] * norms[:, other] + TINY)
        yield f"{signal}-correlation-{AXES[one]}{AXES[other]}", values


def shape_of_spectrum(signal: str, spectrum: Array, axes: tuple[str, ...]) -> Iterator[Named]:
    """The strongest and the mean frequency, and the skewness and kurtosis of the magnitudes."""
    frequencies = np.arange(NUM_BINS) * RATE / WINDOW
    mean = (spectrum * frequencies).sum(axis=2) / (spectrum.sum(axis=2) + TINY)
    # The mean of a magnitude dominates its spectrum, so the maximum is taken above frequency 0.
    strongest = spectrum[:, :, 1:].argmax(axis=2) + 1.0
    yield from per_axis(signal, "maxInds", strongest, axes)
    yield from per_axis(signal, "meanFreq", mean, axes)
    centred = spectrum - spectrum.mean(axis=2, keepdims=True)
    variance = (centred**2).mean(axis=2) + TINY
    skewness = (centred**3).mean(axis=2) / variance**1.5
    kurtosis = (centred**4).mean(axis=2) / variance**2
    for number, axis in enumerate(axes):
        yield from per_axis(signal, "skewness", skewness[:, number : number + 1], (axis,))
        yield from per_axis(signal, "kurtosis", kurtosis[:, number : number + 1], (axis,))


def band_energies(signal: str, spectrum: Array) -> Iterator[Named]:
    """Energy of fourteen bands of frequencies on each axis."""
    power = spectrum**2
    for number, axis in enumerate(AXES):
        for start, end in BANDS:
            name = f"{signal}-bandsEnergy-{start + 1}to{end}-{axis}"
            yield name, power[:, number, start:end].sum(axis=1)


def angles(windows: dict[str, Array]) -> Iterator[Named]:
    """Angles between mean vectors and gravity, and between gravity and the axes of the phone."""
    gravity = windows["tGravityAcc"].mean(axis=2)
    for name in ANGLE_SIGNALS:
        yield f"{name}-angleToGravity", angle_between(windows[name].mean(axis=2), gravity)
    for number, axis in enumerate(AXES):
        yield f"t{axis}AxisAcc-angleToGravity", angle_between(np.eye(3)[number], gravity)


def angle_between(one: Array, other: Array) -> Array:
    lengths = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1) + TINY
    cosine = (one * other).sum(axis=-1) / lengths
    return np.asarray(np.arccos(np.clip(cosine, -1.0, 1.0)))


FEATURE_NAMES: tuple[str, ...] = tuple(
    name for name, _ in all_features({name: np.zeros((1, 3, WINDOW)) for name in TIME_SIGNALS})
)
