"""A static-reservation engine: a request gets blocks for its prompt and all tokens to come when it is scheduled."""

from msgspec.structs import replace

from properties.engine.protocol import EngineCapabilities, Row, Step


class TooLong(Exception):
    pass


class Static:
    level = "engine"
    capabilities = EngineCapabilities(
        refusals=(TooLong,),
        block_sizes=(1, 2, 4),
        prefix_cache=False,
        oversized="refused",
        chunked_prefill=True,
        look_ahead=1,
        preempts=False,
    )
    EXACT = False

    def open(self, c):
        self.c, self.B = c, c.block_size
        self.freeb = list(range(c.num_blocks))
        self.req, self.wait, self.run = {}, [], []

    def submit(self, name, tokens, max_new_tokens):
        need = -(-(len(tokens) + max_new_tokens) // self.B)
        if need > self.c.num_blocks:
            raise TooLong
        self.req[name] = {"toks": list(tokens), "max": max_new_tokens, "new": 0, "t": [], "done": 0, "need": need}
        self.wait.append(name)

    def step(self):
        rows, budget = [], self.c.max_tokens_per_step
        while self.wait and len(self.run) < self.c.max_rows and self.req[self.wait[0]]["need"] <= len(self.freeb):
            n = self.wait.pop(0)
            self.start(self.req[n])
            self.run.append(n)
        for n in self.run:
            r = self.req[n]
            k = min(budget, len(r["toks"]) - r["done"])
            if k <= 0:
                continue
            budget -= k
            rows.append(Row(n, r["done"], r["done"] + k, r["done"] + k == len(r["toks"])))
            r["done"] += k
        return Step(rows)

    def start(self, r):
        r["t"] = [self.freeb.pop() for _ in range(r["need"])]

    def slots(self, name):
        r = self.req[name]
        n = max(r["done"], min(1, len(r["t"]))) if self.EXACT else len(r["t"]) * self.B
        return [r["t"][p // self.B] * self.B + p % self.B for p in range(n)]

    def finish(self, step, tokens):
        it = iter(tokens)
        for row in step.rows:
            if row.samples:
                tok = next(it)
                r = self.req.get(row.name)
                if r is None:
                    continue
                r["toks"].append(tok)
                r["new"] += 1
                if r["new"] == r["max"]:
                    self.cancel(row.name)

    def cancel(self, name):
        r = self.req.pop(name)
        self.freeb += r["t"]
        for q in (self.wait, self.run):
            if name in q:
                q.remove(name)

    def live(self):
        return list(self.req)

    def free_blocks(self):
        return self.freeb


class StaticExact(Static):
    """slots() of the computed tokens alone, of one at least; the table tells all that is held."""

    EXACT = True

    def table(self, name):
        return self.req[name]["t"]

    def ref_count(self, b):
        return sum(b in r["t"] for r in self.req.values())


class Recomputes(Static):
    """With a prefix cache. The last token of a prompt that was hit whole is computed again, into the block that was hit."""

    capabilities = replace(
        Static.capabilities, prefix_cache=True, recomputes_hits=True, cached_overlaps_free=True, num_blocks=(8, 64)
    )

    def open(self, c):
        super().open(c)
        self.block_of, self.key_of, self.refs = {}, {}, [0] * c.num_blocks

    def start(self, r):
        t, B = r["t"], self.B
        for stop in range(B, len(r["toks"]) + 1, B):
            hit = self.block_of.get(tuple(r["toks"][:stop]))
            if hit is None:
                break
            t.append(hit)
            if not self.refs[hit]:
                self.freeb.remove(hit)
            self.refs[hit] += 1
        r["done"] = min(len(t) * B, len(r["toks"]) - 1)
        while len(t) < r["need"]:
            t.append(self.freeb.pop(0))
            self.block_of.pop(self.key_of.pop(t[-1], None), None)
            self.refs[t[-1]] = 1

    def finish(self, step, tokens):
        for row in step.rows:
            r = self.req.get(row.name, {"t": (), "toks": ()})
            for i, block in enumerate(r["t"][: row.stop // self.B]):
                key = tuple(r["toks"][: (i + 1) * self.B])
                if key not in self.block_of and block not in self.key_of:
                    self.block_of[key], self.key_of[block] = block, key
        super().finish(step, tokens)

    def cancel(self, name):
        for block in self.req[name]["t"]:
            self.refs[block] -= 1
        self.req[name]["t"] = [block for block in self.req[name]["t"] if not self.refs[block]]
        super().cancel(name)
