package comity_test

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"comity"
)

// world runs clients/world for a test: the service and the sites, judged by the sites.
type world struct {
	t      *testing.T
	mutex  sync.Mutex
	input  io.WriteCloser
	output *bufio.Reader
	server string
	client *comity.Client
}

type site struct {
	world       *world
	url, direct string
}

type siteRequest struct {
	Start, End float64
	Status     int
	Path       string
}

func start(t *testing.T, rules string) *world {
	t.Helper()
	program := exec.Command("../world")
	program.Stderr = os.Stderr
	input, err := program.StdinPipe()
	must(t, err)
	output, err := program.StdoutPipe()
	must(t, err)
	must(t, program.Start())
	t.Cleanup(func() {
		input.Close()
		_ = program.Wait()
	})
	w := &world{t: t, input: input, output: bufio.NewReader(output)}
	command := map[string]any{"do": "serve"}
	if rules != "" {
		command["rules"] = rules
	}
	w.server = w.do(command)["url"].(string)
	w.client = &comity.Client{Server: w.server}
	return w
}

func (w *world) do(command map[string]any) map[string]any {
	w.t.Helper()
	w.mutex.Lock()
	defer w.mutex.Unlock()
	line, err := json.Marshal(command)
	must(w.t, err)
	_, err = w.input.Write(append(line, '\n'))
	must(w.t, err)
	line, err = w.output.ReadBytes('\n')
	must(w.t, err)
	var answer map[string]any
	must(w.t, json.Unmarshal(line, &answer))
	if problem, failed := answer["error"]; failed {
		w.t.Fatal(problem)
	}
	return answer
}

func (w *world) site(kind string) *site {
	w.t.Helper()
	answer := w.do(map[string]any{"do": "site", "kind": kind})
	return &site{w, answer["url"].(string), answer["direct"].(string)}
}

func (w *world) waiting(domain string) int {
	return int(w.do(map[string]any{"do": "waiting", "domain": domain})["waiting"].(float64))
}

func (s *site) requests() (requests []siteRequest) {
	s.world.t.Helper()
	text, err := json.Marshal(s.world.do(map[string]any{"do": "requests", "site": s.url})["requests"])
	must(s.world.t, err)
	must(s.world.t, json.Unmarshal(text, &requests))
	return requests
}

func (s *site) withStatus(status int) (paths map[string]int) {
	paths = map[string]int{}
	for _, one := range s.requests() {
		if one.Status == status {
			paths[one.Path]++
		}
	}
	return paths
}

// noneEarly fails the test if a request came too early.
func (s *site) noneEarly(delay, hold float64) {
	s.world.t.Helper()
	command := map[string]any{"do": "early", "site": s.url, "delay": delay, "hold": hold}
	if early := s.world.do(command)["early"].([]any); len(early) > 0 {
		s.world.t.Errorf("early: %v", early)
	}
}

// until waits until a condition holds, however busy the machine is.
func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within two minutes: %s", what)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
