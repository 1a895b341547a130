"""Expert paging: routed experts are read from the model's file when a token needs them, under a memory ceiling."""

from __future__ import annotations

from evermind_web.paging.experts import PagingStats as PagingStats
from evermind_web.paging.model import PagedEvermindLM as PagedEvermindLM
from evermind_web.paging.source import ByteSource as ByteSource
from evermind_web.paging.source import CheckpointSource as CheckpointSource
from evermind_web.paging.source import ExpertSource as ExpertSource
from evermind_web.paging.source import FileBytes as FileBytes
from evermind_web.paging.source import HttpBytes as HttpBytes
from evermind_web.paging.source import MemoryBytes as MemoryBytes
