# SPDX-License-Identifier: Apache-2.0
"""Traces: `recorder` keeps a rank's events, `trace` collects those of all ranks and writes them, `timeline` draws them.
Imports nothing, as the context records by `recorder` and `trace` uses the context."""
