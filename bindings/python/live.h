// What is there still when Python has ended, for somebody to end it: a daemon thread that sleeps in its call
// (gil_release.h), or a cycle, holds on to its objects, and a keeper's pool would be left behind.
//
// @threads  holds the GIL, but for all() when Python has ended
#pragma once

#include <set>

namespace cachalot::python {

// The objects of a type whose destruction has not begun.
template <class T>
class Live {
 public:
  static const std::set<T*>& all() { return objects(); }
  static void add(T* object) { objects().insert(object); }
  static void remove(T* object) { objects().erase(object); }

 private:
  static std::set<T*>& objects() {
    static auto* const kept = new std::set<T*>;  // a process ends in any order
    return *kept;
  }
};

// Of clients, and of keepers: as their destructors, and touches nothing of Python. In a forked child they are
// the parent's, and left alone.
void end_clients();
void end_keepers();

}  // namespace cachalot::python
