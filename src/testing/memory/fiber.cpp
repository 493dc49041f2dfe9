#include "testing/memory/fiber.h"

#include <cstdint>

#include "base/check.h"

#if defined(__SANITIZE_ADDRESS__)
#define CACHALOT_FIBER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CACHALOT_FIBER_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define CACHALOT_FIBER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define CACHALOT_FIBER_TSAN 1
#endif
#endif

#ifdef CACHALOT_FIBER_ASAN
#include <pthread.h>
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#include <sanitizer/lsan_interface.h>
#endif
#ifdef CACHALOT_FIBER_TSAN
#include <sanitizer/tsan_interface.h>
#endif
#if !defined(__x86_64__) || defined(CACHALOT_FIBER_UCONTEXT)
#define CACHALOT_FIBER_PORTABLE 1
#include <ucontext.h>
#endif

namespace cachalot::memory {
namespace {

constexpr std::size_t kPageBytes = 4096;
#if defined(CACHALOT_FIBER_ASAN) || defined(CACHALOT_FIBER_TSAN)
constexpr std::size_t kStackBytes = 1 << 20;  // instrumented frames are larger
#else
constexpr std::size_t kStackBytes = 256 << 10;
#endif

}  // namespace

struct Fiber::Context {
#ifdef CACHALOT_FIBER_PORTABLE
  ucontext_t machine;
#else
  void* stack_pointer = nullptr;
#endif
#ifdef CACHALOT_FIBER_ASAN
  const void* bottom = nullptr;
  std::size_t bytes = 0;
  void* fake_stack = nullptr;
#endif
#ifdef CACHALOT_FIBER_TSAN
  void* fiber = nullptr;
#endif
};

#ifdef CACHALOT_FIBER_PORTABLE

namespace {
void enter_halves(unsigned high, unsigned low, void (*enter)(void*)) {
  enter(reinterpret_cast<void*>(static_cast<std::uintptr_t>(high) << 32 | low));
}
}  // namespace

void Fiber::prepare() {
  ucontext_t& machine = context_->machine;
  CACHALOT_CHECK(getcontext(&machine) == 0);
  machine.uc_stack.ss_sp = stack_->data() + kPageBytes;
  machine.uc_stack.ss_size = kStackBytes;
  machine.uc_link = nullptr;
  const auto self = reinterpret_cast<std::uintptr_t>(this);
  void (*entry)(void*) = [](void* fiber) { enter(static_cast<Fiber*>(fiber)); };
  makecontext(&machine, reinterpret_cast<void (*)()>(enter_halves), 3,
              static_cast<unsigned>(self >> 32), static_cast<unsigned>(self), entry);
}

#else

// cachalot_fiber_switch(void** save_stack_pointer, void* stack_pointer): pushes what a function
// must preserve, changes stacks, pops the same. A new stack is laid out as if it had been left by
// this function, to return into cachalot_fiber_start with the entry in r13 and its argument in r12.
extern "C" void cachalot_fiber_switch(void** save_stack_pointer, void* stack_pointer);
extern "C" void cachalot_fiber_start();
asm(R"(
.pushsection .text
.hidden cachalot_fiber_switch
.globl cachalot_fiber_switch
.type cachalot_fiber_switch, @function
cachalot_fiber_switch:
  .cfi_startproc
  endbr64
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .cfi_endproc
.size cachalot_fiber_switch, .-cachalot_fiber_switch
.hidden cachalot_fiber_start
.globl cachalot_fiber_start
.type cachalot_fiber_start, @function
cachalot_fiber_start:
  .cfi_startproc
  .cfi_undefined rip
  endbr64
  movq %r12, %rdi
  call *%r13
  ud2
  .cfi_endproc
.size cachalot_fiber_start, .-cachalot_fiber_start
.popsection
)");

void Fiber::prepare() {
  // From the top: 16 bytes that keep the stack aligned, the return address, rbp, rbx, r12 to r15.
  auto** top = reinterpret_cast<void**>(stack_->data() + stack_->bytes());
  void** frame = top - 9;
  frame[6] = reinterpret_cast<void*>(&cachalot_fiber_start);
  frame[3] = this;                             // r12
  frame[2] = reinterpret_cast<void*>(&enter);  // r13
  context_->stack_pointer = frame;
}

#endif

Fiber::Fiber() : context_(std::make_unique<Context>()) {
#ifdef CACHALOT_FIBER_ASAN
  pthread_attr_t attributes;
  void* bottom = nullptr;
  CACHALOT_CHECK(pthread_getattr_np(pthread_self(), &attributes) == 0);
  CACHALOT_CHECK(pthread_attr_getstack(&attributes, &bottom, &context_->bytes) == 0);
  context_->bottom = bottom;
  pthread_attr_destroy(&attributes);
#endif
#ifdef CACHALOT_FIBER_TSAN
  context_->fiber = __tsan_get_current_fiber();
#endif
}

Fiber::Fiber(void (*body)(void*), void* argument)
    : body_(body),
      argument_(argument),
      stack_(std::make_unique<Pages>(kPageBytes + kStackBytes, PROT_READ | PROT_WRITE)),
      context_(std::make_unique<Context>()) {
  CACHALOT_CHECK(mprotect(stack_->data(), kPageBytes, PROT_NONE) == 0);  // the guard
  prepare();
#ifdef CACHALOT_FIBER_ASAN
  context_->bottom = stack_->data() + kPageBytes;
  context_->bytes = kStackBytes;
#endif
#ifdef CACHALOT_FIBER_TSAN
  context_->fiber = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
  if (stack_ == nullptr) return;
#ifdef CACHALOT_FIBER_TSAN
  __tsan_destroy_fiber(context_->fiber);
#endif
#ifdef CACHALOT_FIBER_ASAN
  // Frames that never returned leave their marks, and the next mapping here would inherit them.
  __asan_unpoison_memory_region(stack_->data() + kPageBytes, kStackBytes);
  // What an abandoned stack owns was left behind on purpose: keep it reachable, so that it is not
  // reported as a leak.
  if (!finished_) {
    __lsan_register_root_region(stack_->data() + kPageBytes, kStackBytes);
    stack_->release();
  }
#endif
}

void Fiber::enter(Fiber* fiber) {
#ifdef CACHALOT_FIBER_ASAN
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
  fiber->body_(fiber->argument_);
  CACHALOT_CHECK(false && "a fiber's body returned");
}

void Fiber::switch_to(Fiber& from, Fiber& to, bool for_good) {
  from.finished_ = for_good;
#ifdef CACHALOT_FIBER_ASAN
  __sanitizer_start_switch_fiber(for_good ? nullptr : &from.context_->fake_stack,
                                 to.context_->bottom, to.context_->bytes);
#endif
#ifdef CACHALOT_FIBER_TSAN
  __tsan_switch_to_fiber(to.context_->fiber, 0);
#endif
#ifdef CACHALOT_FIBER_PORTABLE
  CACHALOT_CHECK(swapcontext(&from.context_->machine, &to.context_->machine) == 0);
#else
  cachalot_fiber_switch(&from.context_->stack_pointer, to.context_->stack_pointer);
#endif
#ifdef CACHALOT_FIBER_ASAN
  __sanitizer_finish_switch_fiber(from.context_->fake_stack, nullptr, nullptr);
#endif
}

}  // namespace cachalot::memory
