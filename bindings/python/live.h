// Clients and keepers that still exist when Python exits: a daemon thread that sleeps in its call
// (gil_release.h), or a reference cycle, may keep them, and a keeper's pool would remain.
//
// @threads  with the GIL, except all() after Python has ended
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
    // Never destroyed: the order of static destructors is not defined
    static auto* const kept = new std::set<T*>;
    return *kept;
  }
};

// End all clients, or keepers, as their destructors do, without using Python objects. They do nothing in a
// forked child: the objects belong to the parent.
void end_clients();
void end_keepers();

}  // namespace cachalot::python
