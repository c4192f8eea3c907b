// Numbers as people read them.

/** Three significant digits, with k and M for thousands and millions. */
export function number(value) {
  if (value >= 1e6) return `${short(value / 1e6)}M`;
  if (value >= 1e4) return `${short(value / 1e3)}k`;
  return short(value);
}

function short(value) {
  if (value >= 100 || Number.isInteger(value)) return String(Math.round(value));
  return value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

export function bytes(value) {
  const mib = value / 2 ** 20;
  return mib >= 1024 ? `${short(mib / 1024)} GiB` : `${Math.round(mib)} MiB`;
}

export function duration(seconds) {
  if (seconds < 120) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 120 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}
