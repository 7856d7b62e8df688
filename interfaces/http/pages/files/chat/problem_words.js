// A failed turn in one plain sentence that says what to do. The server's own text is the detail behind it.

const SHORTER = "Shorten the question or start a new conversation";

/** By the API's code of the error. */
const BY_CODE = {
  context_length_exceeded: `The conversation is too long for this model. ${SHORTER}, or choose a model with a longer context.`,
  prefill_memory_exceeded: `The conversation needs more memory than the server has. ${SHORTER}.`,
  model_not_found: "The server has no such model. Choose another model.",
  model_exceeds_memory: "The model does not fit into the server's memory. Choose a smaller model.",
  model_load_failed: "The model could not be loaded. Choose another model.",
  images_unseen: "This model reads text only. Choose a model that sees images, or edit the question and remove the images.",
  file_unreadable: "An attached file cannot be read. Edit the question and remove it, or attach its text.",
  template_failed: "The model's chat template refuses this conversation. Start a new conversation or choose another model.",
  queue_full: "The server is busy. Try again.",
  models_busy: "Other models are in use and leave no room for this one. Try again, or choose a loaded model.",
  memory_busy: "Other requests use the server's memory. Try again.",
  rate_limit_exceeded: "The limit of your key is reached. Try again later.",
  not_allowed: "Your key does not permit this. Choose another model or enter another key.",
  server_unavailable: "The server is not ready. Try again.",
  request_cancelled: "An operator of the server cancelled the request. Try again later.",
  compute_failed: "The server failed while it computed the answer. Try again.",
  engine_lost: "The server failed while it computed the answer. Shorten the question, or choose another model.",
};

/** By status, where the code tells nothing. */
const BY_STATUS = {
  401: "The server needs an API key. Enter your key.",
  403: BY_CODE.not_allowed,
  404: BY_CODE.model_not_found,
  413: "The request is too large. Remove attachments or start a new conversation.",
  429: "The server is busy. Try again.",
  503: BY_CODE.server_unavailable,
};

/**
 * @param {{message: string, status: number, code: string, retryAfterS: number | null}} problem
 * @returns {{words: string, detail: string}} `detail`: what the server said, empty where the page itself says it all
 */
export function problemWords(problem) {
  const { message, status, code, retryAfterS } = problem;
  const words = known(problem);
  if (words === "") return { words: message, detail: "" };
  const wait = retryAfterS === null ? words : words.replace(/Try again(?: later)?(?=[.,])/, `Try again in ${retryAfterS} s`);
  return { words: wait, detail: [message, [status || "", code].filter(Boolean).join(" ")].filter(Boolean).join("\n") };
}

function known({ status, code }) {
  if (Object.hasOwn(BY_CODE, code)) return BY_CODE[code];
  if (Object.hasOwn(BY_STATUS, status)) return BY_STATUS[status];
  if (status >= 500 || code === "internal_error") return "The server failed. Try again.";
  if (status >= 400) return "The server does not accept this request. Correct the settings or the question, then try again.";
  return ""; // the page's own words
}
