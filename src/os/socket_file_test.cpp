#include "os/socket_file.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <thread>
#include <vector>

#include "os/file_descriptor.h"

namespace cachalot::os {
namespace {

class SocketFileTest : public testing::Test {
 protected:
  SocketFileTest() { std::filesystem::create_directory(folder_); }
  ~SocketFileTest() override { std::filesystem::remove_all(folder_); }

  static FileDescriptor new_socket() {
    return FileDescriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  }
  bool connects() const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    const FileDescriptor fd = new_socket();
    return connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  Error refusal() const {
    const FileDescriptor fd = new_socket();
    const Result<SocketFile> made = SocketFile::listen(fd.get(), path_, 1);
    return made ? Error::make(Code::kInternal, "not refused") : made.error();
  }

  const std::string folder_ = "/dev/shm/cachalot_socket_file." + std::to_string(getpid());
  const std::string path_ = folder_ + "/socket";
};

TEST_F(SocketFileTest, WhatIsNoSocketIsRefusedAndLeftAsItIs) {
  std::ofstream(path_) << "precious";
  EXPECT_EQ(refusal().code, Code::kInvalidArgument);
  EXPECT_NE(std::strstr(refusal().message, (path_ + ": is a file").c_str()), nullptr)
      << refusal().message;
  EXPECT_EQ(SocketFile::check(path_).error().code, Code::kInvalidArgument);
  std::ifstream in(path_);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), "precious");

  std::filesystem::rename(path_, folder_ + "/file");
  std::filesystem::create_symlink(folder_ + "/file", path_);
  EXPECT_NE(std::strstr(refusal().message, "is a symbolic link"), nullptr) << refusal().message;
  EXPECT_TRUE(std::filesystem::is_symlink(path_));
}

TEST_F(SocketFileTest, ASocketThatListensIsNotTakenAway) {
  const FileDescriptor fd = new_socket();
  const Result<SocketFile> file = SocketFile::listen(fd.get(), path_, 8);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_TRUE(SocketFile::check(path_));
  EXPECT_EQ(refusal().code, Code::kBusy);
  EXPECT_NE(std::strstr(refusal().message, "another process listens there"), nullptr);
  EXPECT_TRUE(connects());
}

TEST_F(SocketFileTest, TheSocketOfADeadProcessIsReplaced) {
  FileDescriptor dead = new_socket();
  Result<SocketFile> file = SocketFile::listen(dead.get(), path_, 1);
  ASSERT_TRUE(file);
  dead.close();
  EXPECT_FALSE(connects());
  const FileDescriptor fd = new_socket();
  const Result<SocketFile> second = SocketFile::listen(fd.get(), path_, 1);
  ASSERT_TRUE(second) << second.error().message;
  // The first one ends later: the file is not its own now.
  file = Error::make(Code::kBusy, "ended");
  EXPECT_TRUE(connects());
}

TEST_F(SocketFileTest, TheFileEndsWithItsObject) {
  const FileDescriptor fd = new_socket();
  std::optional<SocketFile> file = *SocketFile::listen(fd.get(), path_, 1);
  EXPECT_TRUE(std::filesystem::exists(path_));
  file.reset();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(SocketFileTest, OfManyThatStartSimultaneouslyOneListens) {
  {
    const FileDescriptor dead = new_socket();
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    ASSERT_EQ(bind(dead.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  struct Attempt {
    FileDescriptor fd = new_socket();
    Result<SocketFile> file = Error::make(Code::kInternal, "none");
  };
  std::vector<Attempt> attempts(8);
  {
    std::vector<std::jthread> threads;
    for (Attempt& each : attempts)
      threads.emplace_back([&] { each.file = SocketFile::listen(each.fd.get(), path_, 8); });
  }
  int listening = 0;
  for (const Attempt& each : attempts) {
    if (each.file) {
      ++listening;
    } else {
      EXPECT_EQ(each.file.error().code, Code::kBusy) << each.file.error().message;
    }
  }
  EXPECT_EQ(listening, 1);
  EXPECT_TRUE(connects());
}

TEST_F(SocketFileTest, BadPathsAreErrors) {
  const FileDescriptor fd = new_socket();
  EXPECT_EQ(SocketFile::listen(fd.get(), folder_ + "/none/socket", 1).error().code,
            Code::kNotFound);
  EXPECT_EQ(SocketFile::listen(fd.get(), folder_ + "/" + std::string(120, 'a'), 1).error().code,
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace cachalot::os
