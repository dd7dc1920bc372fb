r"""A search for the AND and OR effects that explain outputs on some masked states.

Sets of any size are found by climbing: a variable enters or leaves a set as long as its column
explains more of a residual r. A column with c ones of m states explains

.. math:: \frac{p^2}{c\,(m - c) / m} \quad\text{with}\quad p = \sum_S a_S\,r_S

of a centred residual. All neighbors of a set cost two matrix products together. An OR is an AND of
absent variables: it is 0 in the states that lack all of its members. So both are searched alike.

A model grows in rounds. The climbs start at single variables with the residual of the model, and at
every set of the model with the residual of the other sets. So a set that is nearly right gets its
missing variables. Then least squares fits all effects, and those that are not significant leave.
"""

import dataclasses

import numpy as np

# An effect stays if it exceeds this many standard errors.
SIGNIFICANT = 3.5
# Largest numbers of rounds, and of columns, also as a share of the states.
ROUNDS, COLUMNS, SHARE = 40, 400, 1 / 3
# At least so many sets may enter in a round.
FEWEST = 10
# Rounds that go on without explaining this share of the residual.
PATIENCE, PROGRESS = 3, 0.01
# Squares of singular values below this share of the largest count as 0.
RANK = 1e-12


class States:
    """Masked states, the columns of ANDs and ORs on them, and the search for these.

    Attributes:
        present: 1 if a variable is present in a state, shape (state, variable).
        absent: 1 if it is absent, same shape.
    """

    def __init__(self, present: np.ndarray):
        self.present = present.astype(float)
        self.absent = 1 - self.present

    def column(self, members: np.ndarray, is_or: bool) -> np.ndarray:
        """Return 1 for states with all members, or for an OR with any; members (..., variable)."""
        if is_or:
            return (members @ self.present.T > 0).astype(float)
        return (members @ self.absent.T == 0).astype(float)

    def climbed(
        self, members: np.ndarray, residual: np.ndarray, is_or: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return sets that explain more of their residual than any neighbor, and how much.

        Args:
            members: sets to start from, bool (set, variable).
            residual: centred outputs, one row per set, (set, state).
            is_or: whether the sets are ORs.
        """
        having, lacking = self.present, self.absent
        if is_or:
            having, lacking = lacking, having
        members = members.copy()
        reached = np.zeros(len(members))
        moving = np.arange(len(members))
        while len(moving):
            here, rest = members[moving], residual[moving]
            missing = here @ lacking.T
            complete = (missing == 0).astype(float)
            almost = (missing == 1).astype(float)
            count = complete.sum(1, keepdims=True)
            price = (complete * rest).sum(1, keepdims=True)
            # A member that leaves brings the states which lack it alone.
            counts = np.where(here, count + almost @ lacking, complete @ having)
            prices = np.where(here, price + (almost * rest) @ lacking, (complete * rest) @ having)
            gains = _explained(prices, counts, len(having))
            gains[here & (here.sum(1) == 1)[:, None]] = 0
            # Equal columns: the smaller set goes first.
            gains *= np.where(here, 1 + 1e-9, 1 - 1e-9)
            best = gains.argmax(1)
            reached[moving] = _explained(price, count, len(having))[:, 0]
            better = gains.max(1) > reached[moving]
            moving = moving[better]
            members[moving, best[better]] ^= True
        return members, reached


def _explained(price: np.ndarray, count: np.ndarray, states: int) -> np.ndarray:
    """Return the sum of squares that a column explains of a centred residual; 0 if constant."""
    spread = count * (states - count) / states
    return np.where(spread > 0, price**2 / np.where(spread > 0, spread, 1), 0)


@dataclasses.dataclass
class Model:
    """ANDs and ORs on some states, no two with the same column.

    Attributes:
        states: the states.
        members: bool (set, variable).
        is_or: bool (set,).
        matrix: the columns, (state, set).
    """

    states: States
    members: np.ndarray
    is_or: np.ndarray
    matrix: np.ndarray

    @classmethod
    def of(cls, states: States) -> "Model":
        """Return the model of a constant, the OR of all variables."""
        every = np.ones((1, states.present.shape[1]), bool)
        return cls(states, every, np.ones(1, bool), states.column(every, True).T)

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, kept: np.ndarray) -> "Model":
        return Model(self.states, self.members[kept], self.is_or[kept], self.matrix[:, kept])

    def joined(self, members: np.ndarray, is_or: bool) -> "Model":
        """Return the model with further sets, as far as their columns are new and not 0.

        An OR of one variable is an AND of it.
        """
        matrix = np.concatenate([self.matrix, self.states.column(members, is_or).T], 1)
        bits = np.packbits(matrix.astype(bool), axis=0)
        kept = np.sort(np.unique(bits, axis=1, return_index=True)[1])
        model = Model(
            self.states,
            np.concatenate([self.members, members]),
            np.concatenate([self.is_or, is_or & (members.sum(1) > 1)]),
            matrix,
        )
        return model[kept[matrix[:, kept].any(0)]]

    def fitted(self, w: np.ndarray, least: float) -> "tuple[Model, np.ndarray, float]":
        """Return the part that is significant, its effects by least squares, and the variance.

        Args:
            w: outputs minus v[0], shape (state,).
            least: smallest variance of the residual that counts.
        """
        model = self
        while True:
            values, vectors = np.linalg.eigh(model.matrix.T @ model.matrix)
            kept = values > RANK * values.max(initial=0)
            inverse = (vectors[:, kept] / values[kept]) @ vectors[:, kept].T
            x = inverse @ (model.matrix.T @ w)
            rest = w - model.matrix @ x
            variance = max(float(rest @ rest) / max(len(w) - len(model), 1), least)
            size = abs(x) / np.sqrt(variance * inverse.diagonal())
            weakest = size.argsort()[: 1 + len(model) // 5]
            weak = weakest[size[weakest] < SIGNIFICANT]
            if not len(weak):
                return model, x, variance
            model = model[np.setdiff1d(np.arange(len(model)), weak)]

    def neighbors(self, x: np.ndarray, rest: np.ndarray, least: float) -> "Model":
        """Return the model with the sets that climbs find.

        Args:
            x: effects of the model.
            rest: the residual of the outputs.
            least: sum of squares that a new set explains at least.
        """
        singles = np.eye(self.members.shape[1], dtype=bool)
        model = self.joined(np.ones_like(singles[:1]), True)
        for is_or in (False, True):
            own = self.is_or == is_or
            partial = rest + x[own, None] * self.matrix[:, own].T
            residual = np.concatenate([np.tile(rest, (len(singles), 1)), partial])
            residual -= residual.mean(1, keepdims=True)
            starts = np.concatenate([singles, self.members[own]])
            found, gain = self.states.climbed(starts, residual, is_or)
            strongest = (-gain).argsort()[: max(FEWEST, len(self))]
            model = model.joined(found[strongest[gain[strongest] > least]], is_or)
        return model


def grown(
    present: np.ndarray, w: np.ndarray, eps: float, floor: float
) -> tuple[Model, np.ndarray, float]:
    """Return the model that explains w, its effects, and the variance of its residual.

    Args:
        present: 1 if a variable is present in a state, (state, variable).
        w: outputs minus v[0], shape (state,).
        eps: a residual up to this size needs no explanation.
        floor: smallest variance of the residual that counts.
    """
    states = States(present)
    model = Model.of(states).joined(np.eye(present.shape[1], dtype=bool), False)
    best = model, np.zeros(len(model)), np.inf
    idle = 0
    for _ in range(ROUNDS):
        model, x, variance = model.fitted(w, floor)
        rest = w - model.matrix @ x
        idle += 1
        if variance < (1 - PROGRESS) * best[2]:
            best = model, x, variance
            idle = 0
        if abs(rest).max() <= eps or idle == PATIENCE or len(model) > min(COLUMNS, SHARE * len(w)):
            break
        model = model.neighbors(x, rest, SIGNIFICANT**2 * variance)
    return best
