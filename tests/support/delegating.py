"""Classes that pass their methods on to an object of another class, for tests that break one of them."""


def delegating(base, make, methods, **own):
    """Return a subclass of `base` whose instances ask an `inner` object, made by `make`, for some methods."""

    def begin(self):
        self.inner = make()
        for name in ("layout", "num_examples", "split"):
            if hasattr(self.inner, name):
                setattr(self, name, getattr(self.inner, name))

    def passed_on(name):
        return lambda self, *given, **options: getattr(self.inner, name)(*given, **options)

    return type("Correct", (base,), {"__init__": begin, **{name: passed_on(name) for name in methods.split()}, **own})
