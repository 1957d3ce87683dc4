"""pyarrow, where it is there."""

from __future__ import annotations

import importlib
from typing import Any

from ..errors import SimulationError


def load_arrow() -> tuple[Any, Any]:
    """The modules pyarrow and pyarrow.parquet.

    Raises:
        SimulationError: it is not installed.
    """
    try:
        return importlib.import_module('pyarrow'), importlib.import_module('pyarrow.parquet')
    except ImportError:
        raise SimulationError('Parquet files need pyarrow; pip install pyarrow') from None
