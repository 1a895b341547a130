"""The page's story over the public Python API, in plain values; `web/worker.mjs` talks to `Face`."""

from evermind_web.session.core import Session as Session
from evermind_web.session.face import Face as Face
from evermind_web.session.library import Library as Library
