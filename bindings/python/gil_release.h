// Releases the GIL while this thread waits or copies.
//
// The interpreter may exit meanwhile, because it does not wait for daemon threads. Such a thread never gets the
// GIL again: Python 3.14 and later let it sleep; before, pthread_exit() unwinds its stack. Unwinding would abort
// the process in this destructor, and would touch Python objects without the GIL. So the destructor catches it
// and sleeps, too. Asking first whether the interpreter is exiting would leave a race.
//
// @threads  created and destroyed by one thread that holds the GIL
#pragma once

#include <Python.h>
#include <unistd.h>

namespace cachalot::python {

class GilRelease {
 public:
  GilRelease() : thread_(PyEval_SaveThread()) {}
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;
  ~GilRelease() {
    try {
      PyEval_RestoreThread(thread_);
    } catch (...) {
      for (;;) ::pause();  // leaving the handler without rethrowing would abort the process
    }
  }

 private:
  PyThreadState* const thread_;
};

}  // namespace cachalot::python
