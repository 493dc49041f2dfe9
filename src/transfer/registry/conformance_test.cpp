// The suite that every kind of registry passes.
#include <atomic>
#include <csignal>

#include "testing/transfer/registries.h"

namespace cachalot::transfer {
namespace {

TEST_P(RegistryConformance, APublishedPeerIsFoundWithAllThatItSaid) {
  const PeerRecord decode = record_of("decode-0/tp1"), prefill = record_of("prefill-0");
  const auto one = open(), other = open();
  EXPECT_FALSE(one->is_published());
  ASSERT_TRUE(one->publish(decode, soon()));
  ASSERT_TRUE(other->publish(prefill, soon()));
  EXPECT_TRUE(one->is_published());
  for (const auto* registry : {&one, &other}) {
    const Result<PeerRecord> found = (*registry)->find("decode-0/tp1", soon());
    ASSERT_TRUE(found) << text_of(found);
    EXPECT_EQ(*found, decode);
    EXPECT_EQ(*(*registry)->find("prefill-0", soon()), prefill);
  }
  const auto missing = one->find("decode-0", soon());
  EXPECT_TRUE(failed_with(missing, Code::kNotFound)) << text_of(missing);
}

TEST_P(RegistryConformance, AWithdrawnPeerIsNotFound) {
  const auto peer = open(), reader = open();
  ASSERT_TRUE(peer->publish(record_of("a"), soon()));
  ASSERT_TRUE(reader->find("a", soon()));
  EXPECT_TRUE(peer->withdraw(soon()));
  EXPECT_FALSE(peer->is_published());
  EXPECT_TRUE(failed_with(reader->find("a", soon()), Code::kNotFound));
  EXPECT_TRUE(peer->withdraw(soon()));
  {
    const auto ends = open();
    ASSERT_TRUE(ends->publish(record_of("b"), soon()));
  }
  EXPECT_TRUE(failed_with(reader->find("b", soon()), Code::kNotFound));
  // And it can come back.
  EXPECT_TRUE(peer->publish(record_of("c"), soon()));
  EXPECT_TRUE(peer->is_published());
  EXPECT_TRUE(reader->find("c", soon()));
}

TEST_P(RegistryConformance, TheListHasTheLivePeersOfAPrefixInOrder) {
  std::vector<std::unique_ptr<Registry>> peers;
  for (const char* name : {"decode-1", "prefill-0", "decode-0", "decod", "decode/x"}) {
    peers.push_back(open());
    ASSERT_TRUE(peers.back()->publish(record_of(name), soon()));
  }
  const auto names = [&](std::string_view prefix) {
    const auto listed = peers[0]->list(prefix, soon());
    EXPECT_TRUE(listed) << text_of(listed);
    std::vector<std::string> found;
    for (const PeerRecord& peer : *listed) found.push_back(peer.name);
    return found;
  };
  EXPECT_EQ(names("decode"), (std::vector<std::string>{"decode-0", "decode-1", "decode/x"}));
  EXPECT_EQ(names("").size(), 5u);
  EXPECT_EQ(names("x").size(), 0u);
  peers[0].swap(peers.back());
  peers.pop_back();
  EXPECT_EQ(names("decode"), (std::vector<std::string>{"decode-0", "decode/x"}));
}

TEST_P(RegistryConformance, TheNameOfALivePeerIsRefusedAndItsHolderNamed) {
  PeerRecord first = record_of("a"), second = record_of("a");
  first.incarnation = 0x1234;
  first.addresses = {"tcp:10.9.8.7:5"};
  const auto holder = open(), late = open();
  ASSERT_TRUE(holder->publish(first, soon()));
  const Status refused = late->publish(second, in_s(4));
  ASSERT_TRUE(failed_with(refused, Code::kBusy)) << text_of(refused);
  const std::string message = refused.error().message;
  EXPECT_NE(message.find("incarnation 0000000000001234 at tcp:10.9.8.7:5"), std::string::npos)
      << message;
  EXPECT_FALSE(late->is_published());
  EXPECT_EQ(*late->find("a", soon()), first);
  // The end of a peer that was refused does not harm the holder's record.
  EXPECT_TRUE(late->withdraw(soon()));
  EXPECT_EQ(*holder->find("a", soon()), first);
  const Status twice = holder->publish(first, soon());
  EXPECT_TRUE(failed_with(twice, Code::kInvalidArgument)) << text_of(twice);
}

TEST_P(RegistryConformance, WithAClusterKeyARecordWithoutItsTagIsNotThere) {
  const os::SecretKey key{{1}}, another{{2}};
  const auto with = [&](const os::SecretKey& one) { return *open_registry(place_->uri(), one); };
  const auto signer = with(key), reader = with(key), other = with(another), plain = open();
  const PeerRecord record = record_of("a"), untagged = record_of("b");
  PeerRecord forged = record_of("c");
  ASSERT_TRUE(signer->publish(record, soon()));
  EXPECT_EQ(*reader->find("a", soon()), record);
  const Result<PeerRecord> refused = other->find("a", soon());
  EXPECT_TRUE(failed_with(refused, Code::kPermission)) << text_of(refused);
  // A process without the key sees the tag, and puts it on a record of its own.
  const PeerRecord seen = *plain->find("a", soon());
  forged.facts = seen.facts;
  const auto forger = open();
  ASSERT_TRUE(plain->publish(untagged, soon()) && forger->publish(forged, soon()));
  for (const char* const name : {"b", "c"})
    EXPECT_TRUE(failed_with(reader->find(name, soon()), Code::kPermission)) << name;
  EXPECT_EQ(*reader->list("", soon()), std::vector{record});
  EXPECT_EQ(plain->list("", soon())->size(), 3u);
}

TEST_P(RegistryConformance, OfManyPeersThatTakeANameTogetherOneGetsIt) {
  constexpr int kPeers = 6;
  std::vector<std::unique_ptr<Registry>> peers;
  for (int i = 0; i < kPeers; ++i) peers.push_back(open());
  std::atomic<int> published = 0, refused = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kPeers; ++i) {
    threads.emplace_back([&, i] {
      const Status status = peers[static_cast<std::size_t>(i)]->publish(record_of("a"), in_s(5));
      published += status.ok();
      refused += failed_with(status, Code::kBusy);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(published, 1);
  EXPECT_EQ(refused, kPeers - 1);
}

TEST_P(RegistryConformance, APeerThatStartsAgainIsAnotherIncarnation) {
  const auto reader = open();
  auto peer = open();
  const PeerRecord first = record_of("a"), second = record_of("a");
  EXPECT_NE(first.incarnation, second.incarnation);
  EXPECT_EQ(first.machine, second.machine);
  ASSERT_TRUE(peer->publish(first, soon()));
  peer = open();
  ASSERT_TRUE(peer->publish(second, soon()));
  EXPECT_EQ(reader->find("a", soon())->incarnation, second.incarnation);
}

TEST_P(RegistryConformance, ARecordGoesWithAProcessThatIsKilledAndItsNameCanBeTaken) {
  const PeerRecord first = record_of("a"), second = record_of("a");
  os::Child killed = start_peer(first), other = start_peer(record_of("b"));
  const auto reader = open();
  ASSERT_EQ(*reader->find("a", soon()), first);
  killed.send(SIGKILL);
  ASSERT_TRUE(killed.wait());
  // The deadline is longer than a record lapses.
  const Status published = reader->publish(second, in_s(60));
  ASSERT_TRUE(published) << text_of(published);
  EXPECT_EQ(*reader->find("a", soon()), second);
  other.send(SIGKILL);
  ASSERT_TRUE(other.wait());
  EXPECT_TRUE(comes_true([&] { return failed_with(reader->find("b", soon()), Code::kNotFound); }));
  EXPECT_EQ(reader->list("", soon())->size(), 1u);
}

TEST_P(RegistryConformance, ARecordThatWasRemovedComesBackByItself) {
  const auto peer = open(), reader = open();
  const PeerRecord record = record_of("a");
  ASSERT_TRUE(peer->publish(record, soon()));
  place_->remove_record("a");
  EXPECT_TRUE(comes_true([&] { return reader->find("a", soon()).ok(); }));
  EXPECT_EQ(*reader->find("a", soon()), record);
  EXPECT_TRUE(peer->is_published());
}

TEST_P(RegistryConformance, AForkedChildThatEndsDoesNotWithdrawItsParentsRecord) {
  auto peer = open();
  const auto reader = open();
  ASSERT_TRUE(peer->publish(record_of("a"), soon()));
  Result<os::Child> child = os::Child::start([&] {
    peer.reset();
    return 0;
  });
  ASSERT_TRUE(child);
  EXPECT_TRUE(child->wait()->ok());
  EXPECT_TRUE(reader->find("a", soon()));
  EXPECT_TRUE(peer->withdraw(soon()));
  EXPECT_TRUE(failed_with(reader->find("a", soon()), Code::kNotFound));
}

TEST_P(RegistryConformance, AForkedChildThatLivesOnDoesNotKeepTheRecordOfAKilledPeer) {
  int says[2], ends[2];
  ASSERT_EQ(pipe(says), 0);
  ASSERT_EQ(pipe(ends), 0);
  Result<os::Child> peer = os::Child::start([&] {
    const auto registry = open();
    if (!registry->publish(record_of("a"), soon())) return 1;
    const pid_t child = fork();
    char end = 0;
    if (child == 0) {
      close(ends[1]);
      _exit(read(ends[0], &end, 1) == 0 ? 0 : 1);  // until the test ends
    }
    if (write(says[1], "1", 1) != 1) return 1;
    while (true) pause();
  });
  ASSERT_TRUE(peer);
  char said = 0;
  ASSERT_EQ(read(says[0], &said, 1), 1);
  const auto reader = open();
  EXPECT_TRUE(reader->find("a", soon()));
  peer->send(SIGKILL);
  ASSERT_TRUE(peer->wait());
  EXPECT_TRUE(comes_true([&] { return failed_with(reader->find("a", soon()), Code::kNotFound); }));
  for (const int fd : {says[0], says[1], ends[0], ends[1]}) close(fd);
}

TEST_P(RegistryConformance, NamesWithOddCharactersStayApart) {
  const std::vector<std::string> names{
      ".",     "..",    "../../etc/passwd", "/etc/passwd", "a/b",    "a%2Fb", "a b", " ",
      ".lock", ".peer", "a.peer",           "*",           "\"a\"",  "a\\b",  "-rf", "$(a)",
      "ä€𝄞",   "a;b",   "{\"name\":1}",     "~",           ".new.0", "a?b#c", "a:b", "%"};
  std::vector<std::unique_ptr<Registry>> peers;
  std::vector<PeerRecord> records;
  for (const std::string& name : names) {
    peers.push_back(open());
    records.push_back(record_of(name));
    const Status published = peers.back()->publish(records.back(), soon());
    ASSERT_TRUE(published) << text_of(published);
  }
  for (const PeerRecord& record : records) {
    const Result<PeerRecord> found = peers[0]->find(record.name, soon());
    ASSERT_TRUE(found) << text_of(found);
    EXPECT_EQ(*found, record);
  }
  EXPECT_EQ(peers[0]->list("", soon())->size(), names.size());
  EXPECT_EQ(peers[0]->list("..", soon())->size(), 2u);
}

TEST_P(RegistryConformance, RecordsAndNamesThatAreNoneAreRefused) {
  const auto peer = open();
  const auto refuses = [&](const PeerRecord& record) {
    const Status status = peer->publish(record, soon());
    return failed_with(status, Code::kInvalidArgument) && !peer->is_published();
  };
  for (const std::string& name :
       {std::string(), std::string("a\nb"), std::string("a\0b", 3), std::string("\xff"),
        std::string("\xc0\xaf"), std::string("\xed\xa0\x80"), std::string(201, 'a'),
        std::string(67, '/'), std::string("\x7f")}) {
    PeerRecord record = record_of("a");
    record.name = name;
    EXPECT_TRUE(refuses(record)) << name;
    EXPECT_TRUE(failed_with(peer->find(name, soon()), Code::kInvalidArgument)) << name;
  }
  PeerRecord record = record_of("a");
  record.incarnation = 0;
  EXPECT_TRUE(refuses(record));
  record = record_of("a");
  record.addresses = {};
  EXPECT_TRUE(refuses(record));
  record.addresses = {"10.0.0.1"};
  EXPECT_TRUE(refuses(record));
  record.addresses.assign(17, "tcp:a:1");
  EXPECT_TRUE(refuses(record));
  record = record_of("a");
  record.facts["a"] = std::string(1025, 'x');
  EXPECT_TRUE(refuses(record));
  for (int i = 0; i < 17; ++i) record.facts["a" + std::to_string(i)] = std::string(1000, 'x');
  EXPECT_TRUE(refuses(record));
  record = record_of("a");
  record.machine = "\x01";
  EXPECT_TRUE(refuses(record));
  EXPECT_TRUE(peer->list("", soon())->empty());
  // The longest that is allowed.
  EXPECT_TRUE(peer->publish(record_of(std::string(200, 'a')), soon()));
  EXPECT_TRUE(peer->find(std::string(200, 'a'), soon()));
}

}  // namespace
}  // namespace cachalot::transfer
