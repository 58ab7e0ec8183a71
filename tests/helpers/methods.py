"""Every installed detector by name, its class imported."""

from unseen import detectors

ALL = {name: detectors.find(name) for name in detectors.names()}
