"""What Prometheus' own parser makes of a page of metrics."""

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True)
class Page:
    """Types by family, and values by sample."""

    kinds: dict[str, str]
    samples: dict[tuple[str, frozenset[tuple[str, str]]], float]

    @property
    def names(self) -> set[str]:
        """Of the samples, as a query names them."""
        return {name for name, _ in self.samples}

    def value(self, name: str, **labels: str) -> float:
        return self.samples[name, frozenset(labels.items())]

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """The values of a metric by one of its labels."""
        return {
            dict(labels)[label]: value
            for (known, labels), value in self.samples.items()
            if known == name
        }

    def sum(self, name: str, **labels: str) -> float:
        """Over all samples with these labels."""
        wanted = labels.items()
        found = [
            value for (known, own), value in self.samples.items() if known == name and wanted <= own
        ]
        assert found, f"no sample of {name} with {labels}"
        return sum(found)


def read_page(text: str) -> Page:
    """Fails for a page with a family or sample that comes twice, a wrong type, or a histogram that shrinks."""
    assert text.endswith("\n")
    typed = [line.split()[2:] for line in text.splitlines() if line.startswith("# TYPE ")]
    assert len({name for name, _ in typed}) == len(typed), "a family comes twice"
    kinds: dict[str, str] = {}
    samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in text_string_to_metric_families(text):
        assert family.type != "unknown", family.name
        kinds[family.name] = family.type
        lowest = 0.0
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in samples, f"{key} comes twice"
            samples[key] = sample.value
            if family.type == "counter":
                assert sample.name.endswith("_total"), sample.name
                assert sample.value >= 0, sample
            if sample.name.endswith("_bucket"):
                assert sample.value >= lowest, sample
                lowest = 0.0 if sample.labels["le"] == "+Inf" else sample.value
    assert len(kinds) == len(typed)
    return Page(kinds, samples)
