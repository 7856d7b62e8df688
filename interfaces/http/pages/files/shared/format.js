// Numbers as people read them. What is not known is a dash, never a zero.

export const UNKNOWN = "–";

const known = (value) => typeof value === "number" && Number.isFinite(value);

/** 1536 -> "1.5 KiB". */
export function bytes(value) {
  if (!known(value)) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let scaled = Math.abs(value);
  let unit = 0;
  while (scaled >= 1023.5 && unit < units.length - 1) {
    scaled /= 1024;
    unit += 1;
  }
  const text = unit === 0 || scaled >= 100 ? scaled.toFixed(0) : scaled.toFixed(1);
  return `${value < 0 ? "-" : ""}${text} ${units[unit]}`;
}

/** 0.0421 -> "42 ms", 75 -> "1 min 15 s". */
export function seconds(value) {
  if (!known(value)) return UNKNOWN;
  if (value === 0) return "0 s";
  if (value < 0) return `-${seconds(-value)}`;
  if (value < 0.001) return `${(value * 1000).toFixed(2)} ms`;
  if (value < 0.01) return `${(value * 1000).toFixed(1)} ms`;
  if (value < 0.9995) return `${(value * 1000).toFixed(0)} ms`;
  if (value < 9.95) return `${value.toFixed(1)} s`;
  const whole = Math.round(value);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 1440) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.floor(minutes / 1440)} d ${Math.floor((minutes % 1440) / 60)} h`;
}

/** 12345 -> "12,345". */
export function count(value) {
  return known(value) ? Math.round(value).toLocaleString("en-US") : UNKNOWN;
}

/** 12345 -> "12.3k": for axes and narrow places. */
export function short(value) {
  if (!known(value)) return UNKNOWN;
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (value >= size) return `${Number((value / size).toFixed(1))}${unit}`;
  }
  return String(Number(value.toFixed(value < 10 ? 1 : 0)));
}

/** 0.4217 -> "42.2 %". */
export function percent(value) {
  return known(value) ? `${Number((value * 100).toFixed(1))} %` : UNKNOWN;
}
