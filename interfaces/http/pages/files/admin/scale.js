// How values become heights: the share of a plot's height that each has, and the values that are written beside it.

/** @typedef {{share: (value: number) => number, ticks: number[]}} Scale */

/** From zero to a round number. @param {number[]} values @returns {Scale} */
export function fromZero(values) {
  const most = roundUp(Math.max(0, ...values));
  return { share: (value) => value / most, ticks: [0, most / 2, most] };
}

/** The least of 1, 2, 5 times a power of ten that is no less. */
function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999999);
}

/** Logarithmic, whole powers of ten: for what may be a thousandth and a hundred. @param {number[]} values */
export function decades(values) {
  const positive = values.filter((value) => value > 0);
  const low = positive.length === 0 ? -2 : Math.floor(Math.log10(Math.min(...positive)));
  const high = positive.length === 0 ? 0 : Math.max(low + 1, Math.ceil(Math.log10(Math.max(...positive))));
  const share = (value) => (value > 0 ? (Math.log10(value) - low) / (high - low) : 0);
  const ticks = Array.from({ length: high - low + 1 }, (_, index) => 10 ** (low + index));
  return { share, ticks: ticks.length <= 5 ? ticks : ticks.filter((_, index) => index % 2 === 0) };
}
