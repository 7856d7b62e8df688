// A load under way in words: what is being loaded, how far it is, and the seconds that are left where they are known.

import { percent, seconds } from "./format.js";

const PHASES = { hashing: "hashing its files", reading: "reading its weights", measuring: "measuring its memory and speed" };

/**
 * @param {{model: string | null, phase: string, fraction: number | null, seconds_left: number | null} | null} loading
 * LoadingBody @returns {string} empty where nothing is loaded
 */
export function loadingText(loading) {
  if (!loading) return "";
  const { model, phase, fraction, seconds_left: leftS } = loading;
  const details = [PHASES[phase], fraction === null ? "" : percent(fraction), leftS === null ? "" : `${seconds(leftS)} left`];
  const parts = details.filter(Boolean).join(", ");
  return `loading ${model ?? "a model"}${parts === "" ? "" : `: ${parts}`}`;
}
