#include "transfer/link/leases.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "os/process.h"
#include "transfer/link/peer_memory.h"

namespace cachalot::transfer {
namespace {

std::string path_of(const Leases& leases) {
  return "/proc/self/fd/" + std::to_string(leases.fd());
}

TEST(Leases, APeerSeesTheEndOfALease) {
  const auto leases = *Leases::create();
  const PeerLeases peer = *PeerLeases::open(path_of(*leases));
  const LeaseId first = *leases->begin(), second = *leases->begin();
  EXPECT_TRUE(peer.holds(first));
  leases->end(first);
  EXPECT_FALSE(peer.holds(first));
  EXPECT_TRUE(peer.holds(second));
}

TEST(Leases, ASlotThatIsUsedAgainIsAnotherLease) {
  const auto leases = *Leases::create();
  const PeerLeases peer = *PeerLeases::open(path_of(*leases));
  const LeaseId first = *leases->begin();
  leases->end(first);
  const LeaseId second = *leases->begin();
  EXPECT_EQ(second.slot, first.slot);
  EXPECT_FALSE(peer.holds(first));
  EXPECT_TRUE(peer.holds(second));
}

TEST(Leases, TheOwnerWaitsForAReaderOfItsProcess) {
  const auto leases = *Leases::create();
  const PeerLeases peer = *PeerLeases::open(path_of(*leases), true);
  const LeaseId lease = *leases->begin();
  ASSERT_TRUE(peer.enter(lease));
  std::atomic<bool> has_ended = false;
  std::thread owner([&] {
    leases->end(lease);
    has_ended = true;
  });
  while (peer.holds(lease)) std::this_thread::yield();
  for (int i = 0; i < 1000 && !has_ended; ++i) std::this_thread::yield();
  EXPECT_FALSE(has_ended);
  EXPECT_FALSE(peer.enter(lease));
  peer.leave(lease);
  owner.join();
  EXPECT_FALSE(peer.enter({0xffffffffu, 1}));  // beyond the file
}

TEST(Leases, WhatIsNoLeaseIsNotHeld) {
  const auto leases = *Leases::create();
  const PeerLeases peer = *PeerLeases::open(path_of(*leases));
  EXPECT_FALSE(peer.holds({0xffffffffu, 1}));  // beyond the file
  EXPECT_FALSE(peer.holds({0, 1}));            // what the file is
}

TEST(Leases, AnotherFileIsRefused) {
  EXPECT_EQ(PeerLeases::open("/proc/self/exe").error().code, Code::kBadInput);
  EXPECT_FALSE(PeerLeases::open("/proc/self/fd/9999").ok());
}

TEST(PeerMemory, APeerOnAnotherMachineIsNotRead) {
  EXPECT_EQ(PeerMemory::open(0, {}).error().code, Code::kUnsupported);
}

}  // namespace
}  // namespace cachalot::transfer
