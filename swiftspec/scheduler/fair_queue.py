"""Queue of requests that treats clients alike: who has had the least service is next.

The virtual token counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024, arXiv 2401.00588):
tokens are counted for each client, and those of outputs count twice, as there. With one client it is a plain queue.
"""

from collections import deque

OUTPUT_WEIGHT = 2  # of an output token; one of a prompt counts 1
_FEW_CLIENTS = 64


class FairQueue:
    """Requests that wait, by client. The requests of one client keep their order.

    Examples
    --------
    >>> queue = FairQueue()
    >>> for request, client in enumerate(["many", "many", "many", "one"]):
    ...     queue.append(request, client)
    >>> queue.popleft()
    0
    >>> queue.charge("many", 100)
    >>> queue.popleft()
    3
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[int]] = {}  # never empty ones
        self._service: dict[str, float] = {}  # of each client, in weighted tokens
        self._most_kept = _FEW_CLIENTS  # before those who need not be known are forgotten
        self._least = 0.0  # that of the client whose request left last: whoever comes anew begins with it

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def append(self, request: int, client: str) -> None:
        """Queue a request after those of its client."""
        self._of(client).append(request)

    def appendleft(self, request: int, client: str) -> None:
        """Queue a request before those of its client."""
        self._of(client).appendleft(request)

    def _of(self, client: str) -> deque[int]:
        """Its requests. A client that was away has no claim to service that it missed."""
        if client not in self._waiting:
            self._waiting[client] = deque()
            self._service[client] = max(self._service.get(client, 0.0), self._least)
        return self._waiting[client]

    @property
    def head(self) -> int:
        """The next request. IndexError if there is none."""
        return self._waiting[self._client()][0]

    def popleft(self) -> int:
        """Take the next request. IndexError if there is none."""
        client = self._client()
        self._least = self._service[client]
        request = self._waiting[client].popleft()
        if not self._waiting[client]:
            del self._waiting[client]
        if not self._waiting:  # nobody was kept waiting by what has been served so far
            self._service, self._least = {}, 0.0
        if len(self._service) > self._most_kept:
            self._forget_the_served_least()
        return request

    def _forget_the_served_least(self) -> None:
        """Forget clients that would begin with as much service as those who come anew; many may come only once."""
        kept = {name: done for name, done in self._service.items() if name in self._waiting or done > self._least}
        self._service, self._most_kept = kept, max(_FEW_CLIENTS, 2 * len(kept))

    def charge(self, client: str, service: float) -> None:
        """Count service, in weighted tokens."""
        self._service[client] = self._service.get(client, self._least) + service

    def remove(self, request: int) -> None:
        """Forget a request, if it waits."""
        for requests in self._waiting.values():
            if request in requests:
                requests.remove(request)
        self._waiting = {client: requests for client, requests in self._waiting.items() if requests}

    def _client(self) -> str:
        """The client with the least service; the one that has waited longest, if several have."""
        if not self._waiting:
            raise IndexError("the queue is empty")
        return min(self._waiting, key=lambda client: self._service[client])
