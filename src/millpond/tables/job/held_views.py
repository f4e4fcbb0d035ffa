"""Views that outlive the read that opened them: for a scan's next page, and for cuts.

A held view keeps pages of the replica from reuse.  So a thread ends each after a time; the thread
lives only as long as there are held views.  One reader at a time uses a view.
"""

from __future__ import annotations

import os
import secrets
import threading
import time

from millpond.errors import ReplicaError
from millpond.replica.replica import View

# Names this process in tokens, so that other processes of the server know which one holds a view.
HOLDER = secrets.token_hex(4)


class HeldView:
    """A view that is kept for several reads, one after the other, until its time is over."""

    def __init__(self, view: View, seconds: float) -> None:
        self.view = view
        self.expires = time.monotonic() + seconds
        self.used = False
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._ended = False

    def try_lease(self) -> View | None:
        """The view for one read, which gives it back when it leaves; None if its time is over."""
        if os.getpid() != self._process:
            raise ReplicaError(
                "REPLICA_CLOSED",
                "The view was opened before this process was forked.",
                hint="Open the pond in the process that reads it, or start processes with the `spawn` method.",
            )
        self._lock.acquire()
        if self._ended:
            self._lock.release()
            return None
        self.used = True
        return self.view.lend(self._lock.release)

    def end(self) -> None:
        """End the view, as soon as nobody reads it."""
        with self._lock:
            if not self._ended:
                self._ended = True
                self.view.close()


class HeldViews:
    """The views that one job's readers hold in this process.

    most:     the largest number of pages; beyond it, the oldest whose next page nobody asked for
              goes first, then the oldest
    seconds:  how long each is held
    """

    def __init__(self, *, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._pages: dict[tuple[str, int], HeldView] = {}
        self._cuts: set[HeldView] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def keep_page(self, view: View) -> None:
        """Take over a view whose batch somebody may ask for again: for a next page, or by a cut's token.

        If the batch is held already, its time begins again.  It is the newest batch, so this keeps
        no older pages from reuse.
        """
        if not view.is_own:  # held already, or read from one table's history, which other tables may lack
            view.close()
            return
        place = view.generation, view.record.batch
        with self._changed:
            if self._most < 1:
                ended = [HeldView(view, 0)]
            elif place in self._pages:
                ended = [HeldView(view, 0)]
                self._pages[place].expires = time.monotonic() + self._seconds
            else:
                self._pages[place] = HeldView(view, self._seconds)
                ended = [self._pages.pop(self._least()) for _ in range(len(self._pages) - self._most)]
                self._watch()
        for held_view in ended:
            held_view.end()

    def try_page(self, generation: str, batch: int) -> View | None:
        """The view of an earlier page; None if it is no longer held."""
        with self._changed:
            held_view = self._pages.get((generation, batch))
        return held_view.try_lease() if held_view is not None else None

    def hold(self, view: View, seconds: float) -> HeldView:
        """Hold a view for a cut, which ends it with `let_go`."""
        held_view = HeldView(view, seconds)
        with self._changed:
            self._cuts.add(held_view)
            self._watch()
        return held_view

    def let_go(self, held_view: HeldView) -> None:
        """End the view of a cut."""
        with self._changed:
            self._cuts.discard(held_view)
        held_view.end()

    def close(self) -> None:
        """End all."""
        with self._changed:
            ended = [*self._pages.values(), *self._cuts]
            self._pages.clear()
            self._cuts.clear()
            self._changed.notify_all()
        for held_view in ended:
            held_view.end()

    def __len__(self) -> int:
        return len(self._pages) + len(self._cuts)

    def _least(self) -> tuple[str, int]:
        """The page to give up first, never the newest.

        It is the oldest page whose next one nobody asked for, or else the oldest of all.
        """
        newest = next(reversed(self._pages))
        places = [place for place in self._pages if place != newest]
        return next((place for place in places if not self._pages[place].used), places[0] if places else newest)

    def _watch(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._expire, name="millpond-held-views", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _expire(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                late = [place for place, held_view in self._pages.items() if held_view.expires <= now]
                ended = [self._pages.pop(place) for place in late]
                ended += [held_view for held_view in self._cuts if held_view.expires <= now]
                self._cuts -= set(ended)
                if not ended:
                    if not self:
                        self._thread = None
                        return
                    self._changed.wait(min(held_view.expires for held_view in [*self._pages.values(), *self._cuts]) - now)
                    continue
            for held_view in ended:
                held_view.end()
