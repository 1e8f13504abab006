// Calls of the model that follow the visitor's changes: the newest replaces those before it.

const DELAY = 120; // milliseconds after the last key
const SLOW = 1500; // milliseconds until a call is announced

let count = 0;

/** Count the running jobs: the page is busy while there are any. */
function countJobs(change) {
  count += change;
  if (count) document.documentElement.dataset.busy = "yes";
  else delete document.documentElement.dataset.busy;
}

/**
 * Return a function that runs `work(signal)`; a new call cancels the one before it.
 *
 * `isTyping` waits until no key follows. `onSlow` is called with true if the work takes long, and with false at its end.
 */
export function latest(work, onSlow = () => {}) {
  let running = null;
  return async ({ isTyping = false } = {}) => {
    running?.abort();
    const own = (running = new AbortController()), { signal } = own;
    countJobs(1);
    let timer;
    try {
      if (isTyping) await new Promise((resolve) => setTimeout(resolve, DELAY));
      if (signal.aborted) return;
      timer = setTimeout(() => onSlow(true), SLOW);
      await work(signal);
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    } finally {
      clearTimeout(timer);
      if (own === running) onSlow(false);
      countJobs(-1);
    }
  };
}
