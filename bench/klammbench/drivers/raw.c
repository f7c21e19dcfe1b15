/* The raw driver: sends ready-made request frames to one broker, or to each broker of a cluster, and checks each answer,
 * so that the brokers are the limit.
 *
 *   raw PORT[,PORT...] FRAMES[,FRAMES...] CONNECTIONS DEPTH WARM_S MEASURE_S MAX_BYTES RATE
 *
 * FRAMES is a file of frames, each with its own 4-byte big-endian length in front, as on the wire: Produce requests of
 * version 9 with one topic and one partition each. Every connection sends them in turn, beginning at a place of its own.
 * With several ports, each has a file of its own, and connection i goes to the broker i mod the number of ports.
 *
 * RATE 0: closed loop; DEPTH requests are in flight on each connection. RATE > 0: open loop; request k is due at k / RATE
 * seconds, goes to connection k mod CONNECTIONS, and its latency counts from when it was due, sent or not (so a stall is
 * seen by all that it held up). When the measured time is over, what was due in it is still waited for. The driver's own
 * delay, from when a request was due to when the driver took it up, is part of its latency and is given beside it: with
 * real-time priority, which an open loop takes where it may, it stays small though the broker wants the cores too.
 *
 * For WARM_S nothing counts; then for MEASURE_S, or until MAX_BYTES were acknowledged. Prints one line of JSON:
 * requests, bytes (of the frames acknowledged in the measured time), all_bytes (warm-up included), seconds, warm_end and end (CLOCK_MONOTONIC, s),
 * latency quantiles in µs, late_p99_us (the driver's own delay) and realtime (1 with that priority) of an open loop, cpu_s
 * of this process in the measured time. An answer with an error code, with another
 * correlation id than was sent, or none for 10 s ends it with exit status 1 and a line on stderr. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { QUEUE = 16384, INPUT = 1 << 16, MAX_CONNECTIONS = 1024, MAX_BROKERS = 16 };
static const double SILENCE_S = 10.0;

struct frame { const char *data; uint32_t size; uint32_t correlation; };
struct broker { int port; struct frame *frames; uint32_t frame_count; };

struct connection {
    int fd, writable_wanted;
    const struct broker *broker;
    uint32_t next;            /* frame to put next into the queue */
    uint32_t head, sent, tail; /* queue: [head, sent) sent and unanswered, sent is under way, [sent, tail) waiting */
    uint32_t sent_of;         /* bytes of frame `sent` that are gone */
    uint32_t frames[QUEUE];
    double due[QUEUE];
    char input[INPUT];
    uint32_t filled;
};

struct samples { float *us; uint64_t count, room; };
static struct samples latencies, delays;
static uint64_t done_requests, done_bytes, all_bytes;
static int counting;
static double last_answer, count_from;

static void die(const char *what) {
    fprintf(stderr, "raw driver: %s\n", what);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static double cpu(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static uint32_t big32(const char *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return ntohl(v);
}

static void load(struct broker *b, const char *path) {
    FILE *file = fopen(path, "rb");
    struct stat about;
    if (!file || fstat(fileno(file), &about) || about.st_size < 12) die("cannot read the frames");
    char *data = malloc(about.st_size);
    if (!data || fread(data, 1, about.st_size, file) != (size_t)about.st_size) die("cannot read the frames");
    fclose(file);
    for (off_t at = 0; at < about.st_size; b->frame_count++) {
        b->frames = realloc(b->frames, (b->frame_count + 1) * sizeof *b->frames);
        if (!b->frames) die("out of memory");
        uint32_t size = 4 + big32(data + at);
        if (size < 12 || at + size > about.st_size) die("a frame is cut off");
        b->frames[b->frame_count] = (struct frame){data + at, size, big32(data + at + 8)};
        at += size;
    }
}

/* Takes both lists apart; returns the number of brokers. */
static int load_all(struct broker *brokers, char *ports, char *files) {
    char *next_port, *next_file, *port = strtok_r(ports, ",", &next_port), *file = strtok_r(files, ",", &next_file);
    int count = 0;
    for (; port && file && count < MAX_BROKERS; count++) {
        brokers[count].port = atoi(port);
        load(&brokers[count], file);
        port = strtok_r(NULL, ",", &next_port);
        file = strtok_r(NULL, ",", &next_file);
    }
    if (port || file || !count) die("each port needs one file of frames; at most 16 of each");
    return count;
}

static int dial(int port) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to)) die("cannot connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static void enqueue(struct connection *c, double due) {
    if (c->tail - c->head >= QUEUE) die("16384 requests wait on one connection: the rate is far beyond the broker's");
    c->frames[c->tail % QUEUE] = c->next;
    c->due[c->tail % QUEUE] = due;
    c->tail++;
    c->next = (c->next + 1) % c->broker->frame_count;
}

static void want_writable(struct connection *c, int epoll, int wanted) {
    if (c->writable_wanted == wanted) return;
    c->writable_wanted = wanted;
    struct epoll_event event = {.events = EPOLLIN | (wanted ? EPOLLOUT : 0), .data.ptr = c};
    if (epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &event)) die("epoll_ctl");
}

static void push(struct connection *c, int epoll) {
    while (c->sent != c->tail) {
        const struct frame *f = &c->broker->frames[c->frames[c->sent % QUEUE]];
        ssize_t n = send(c->fd, f->data + c->sent_of, f->size - c->sent_of, MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            want_writable(c, epoll, 1);
            return;
        }
        if (n < 0) die("the broker closed a connection while it was sent to");
        c->sent_of += n;
        if (c->sent_of == f->size) {
            c->sent_of = 0;
            c->sent++;
        }
    }
    want_writable(c, epoll, 0);
}

static void remember(struct samples *s, double seconds) {
    if (s->count == s->room) {
        s->room = s->room ? s->room * 2 : 1 << 16;
        s->us = realloc(s->us, s->room * sizeof *s->us);
        if (!s->us) die("out of memory");
    }
    s->us[s->count++] = seconds * 1e6f;
}

/* Produce response version 9: correlation id, tags, [topics] name [partitions] index, error code. */
static void check(struct connection *c, const char *answer, uint32_t size, double at) {
    if (c->head == c->sent) die("an answer to nothing");
    const struct frame *f = &c->broker->frames[c->frames[c->head % QUEUE]];
    if (size < 8 || big32(answer) != f->correlation) die("an answer with another correlation id");
    uint32_t name = (unsigned char)answer[6]; /* length + 1, in one byte: names are short */
    uint32_t error = 7 + (name - 1) + 1 + 4;
    if (answer[5] != 2 || name < 2 || name > 127 || size < error + 2 || answer[error - 5] != 2) die("an answer of another form");
    int code = (int16_t)((unsigned char)answer[error] << 8 | (unsigned char)answer[error + 1]);
    if (code) {
        fprintf(stderr, "raw driver: the broker answered with error code %d\n", code);
        exit(1);
    }
    all_bytes += f->size;
    if (counting && c->due[c->head % QUEUE] >= count_from) {
        remember(&latencies, at - c->due[c->head % QUEUE]);
        done_requests++;
        done_bytes += f->size;
    }
    c->head++;
}

/* Takes in what is there; how many answers came. */
static uint32_t pull(struct connection *c, double *at) {
    uint32_t answers = 0;
    ssize_t n = recv(c->fd, c->input + c->filled, INPUT - c->filled, 0);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK)) die("the broker closed a connection");
    *at = now();
    if (n < 0) return 0;
    c->filled += n;
    uint32_t from = 0;
    while (c->filled - from >= 4) {
        uint32_t size = big32(c->input + from);
        if (size > INPUT - 4) die("an answer of an impossible size");
        if (c->filled - from < 4 + size) break;
        check(c, c->input + from + 4, size, *at);
        from += 4 + size;
        answers++;
    }
    memmove(c->input, c->input + from, c->filled - from);
    c->filled -= from;
    if (answers) last_answer = *at;
    return answers;
}

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Sorted before. */
static double quantile(const struct samples *s, double q) {
    if (!s->count) return 0;
    uint64_t at = q * s->count;
    return s->us[at < s->count ? at : s->count - 1];
}

/* So that a request goes out when it is due, and an answer is seen when it comes. The kernel refuses it to most users. */
static int take_priority(void) {
    struct sched_param least = {.sched_priority = 1};
    prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0); /* ns; 50 µs by default */
    return sched_setscheduler(0, SCHED_FIFO, &least) == 0;
}

static int none_waiting(const struct connection *all, int count) {
    for (int i = 0; i < count; i++)
        if (all[i].head != all[i].tail) return 0;
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 9) die("raw PORT[,PORT...] FRAMES[,FRAMES...] CONNECTIONS DEPTH WARM_S MEASURE_S MAX_BYTES RATE");
    int connection_count = atoi(argv[3]), depth = atoi(argv[4]);
    double warm = atof(argv[5]), measure = atof(argv[6]), max_bytes = atof(argv[7]), rate = atof(argv[8]);
    if (connection_count < 1 || connection_count > MAX_CONNECTIONS || depth < 1 || depth > QUEUE) die("bad arguments");
    struct broker brokers[MAX_BROKERS] = {0};
    int broker_count = load_all(brokers, argv[1], argv[2]);
    struct connection *all = calloc(connection_count, sizeof *all);
    int epoll = epoll_create1(0);
    if (!all || epoll < 0) die("out of memory");
    for (int i = 0; i < connection_count; i++) {
        all[i].broker = &brokers[i % broker_count];
        all[i].fd = dial(all[i].broker->port);
        all[i].next = (uint64_t)i * all[i].broker->frame_count / connection_count;
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &all[i]};
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, all[i].fd, &event)) die("epoll_ctl");
    }
    int realtime = rate > 0 && take_priority();
    double until = 0; /* > 0: the end of an open loop's measured time; it only waits for answers since */
    double begin = now(), measured_from = begin + warm, cpu_from = cpu(), at = begin;
    uint64_t due_count = 0;
    counting = warm <= 0;
    last_answer = begin;
    for (int i = 0; rate == 0 && i < connection_count; i++) {
        for (int k = 0; k < depth; k++) enqueue(&all[i], now());
        push(&all[i], epoll);
    }
    for (;;) {
        if (!counting && at >= measured_from) {
            counting = 1;
            measured_from = at;
            count_from = rate > 0 ? at : 0; /* of an open loop only what is due in the measured time */
            cpu_from = cpu();
        }
        if (counting && !until && (at - measured_from >= measure || done_bytes >= max_bytes)) {
            if (rate == 0) break;
            until = at;
        }
        if (until && none_waiting(all, connection_count)) break;
        struct timespec wait = {0, 200 * 1000 * 1000};
        if (rate > 0 && !until) {
            for (at = now(); begin + due_count / rate <= at; due_count++, at = now()) {
                struct connection *c = &all[due_count % connection_count];
                double due = begin + due_count / rate;
                if (counting && due >= count_from) remember(&delays, at - due);
                enqueue(c, due);
                push(c, epoll);
            }
            double left = begin + due_count / rate - now();
            wait = (struct timespec){0, left > 0 ? (left > 0.2 ? 0.2 : left) * 1e9 : 0};
        }
        struct epoll_event events[256];
        int n = epoll_pwait2(epoll, events, 256, &wait, NULL);
        if (n < 0 && errno != EINTR) die("epoll_pwait2");
        at = now();
        for (int i = 0; i < n; i++) {
            struct connection *c = events[i].data.ptr;
            if (events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP)) {
                uint32_t answers = pull(c, &at);
                for (; rate == 0 && answers; answers--) enqueue(c, at);
            }
            push(c, epoll);
        }
        if (at - last_answer > SILENCE_S) die("no answer for 10 s");
    }
    double end = until ? until : at, cpu_s = cpu() - cpu_from, seconds = end - measured_from;
    qsort(latencies.us, latencies.count, sizeof *latencies.us, by_value);
    qsort(delays.us, delays.count, sizeof *delays.us, by_value);
    printf("{\"requests\": %llu, \"bytes\": %llu, \"all_bytes\": %llu, \"seconds\": %.6f, \"warm_end\": %.6f, \"end\": %.6f, \"cpu_s\": %.4f, "
           "\"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f, \"late_p99_us\": %.1f, \"realtime\": %d}\n",
           (unsigned long long)done_requests, (unsigned long long)done_bytes, (unsigned long long)all_bytes, seconds, measured_from, end, cpu_s,
           quantile(&latencies, 0.5), quantile(&latencies, 0.99), quantile(&latencies, 0.999), quantile(&delays, 0.99), realtime);
    return 0;
}
