package comity

import (
	"encoding/json"
	"net/http"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// WhatOpenAPISays checks this package against the description that a service gives of itself. It is called by a test of
// the package comity_test, which has a service.
func WhatOpenAPISays(t *testing.T, server string) {
	answer, err := http.Get(server + "/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var api struct {
		Paths      map[string]map[string]any
		Components struct {
			Schemas map[string]struct {
				Properties map[string]any
				Enum       []string
			}
		}
	}
	if err := json.NewDecoder(answer.Body).Decode(&api); err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("client.go")
	if err != nil {
		t.Fatal(err)
	}
	paths := regexp.MustCompile(`"(/v1/[^"]*)"`).FindAllStringSubmatch(string(source), -1)
	if len(paths) < 7 {
		t.Fatal(paths)
	}
	for _, path := range paths {
		if api.Paths[path[1]]["post"] == nil {
			t.Errorf("%s: no such path", path[1])
		}
	}
	for schema, used := range map[string]any{
		"Decision": Decision{}, "Record": Report{}, "Recorded": Recorded{}, "Acquire": ask{}, "Asks": asks{},
		"Decisions": decisions{}, "Records": reports{}, "Recordeds": recordeds{}, "Renew": renewal{}, "Renewed": renewed{},
		"Problem": problem{},
	} {
		kind := reflect.TypeOf(used)
		for nth := 0; nth < kind.NumField(); nth++ {
			name := strings.Split(kind.Field(nth).Tag.Get("json"), ",")[0]
			if _, known := api.Components.Schemas[schema].Properties[name]; !known {
				t.Errorf("%s.%s: the service has no such field", schema, name)
			}
		}
	}
	intents := []string{string(Fetch), string(Search), string(API)}
	if !reflect.DeepEqual(intents, api.Components.Schemas["Intent"].Enum) {
		t.Error(api.Components.Schemas["Intent"].Enum)
	}
	var outcomes []string
	for _, one := range []Outcome{
		Success, OtherAnswer, RateLimited, Blocked, SiteAway, ServerError, Timeout, NetworkError, Abandoned,
	} {
		outcomes = append(outcomes, string(one))
	}
	if !reflect.DeepEqual(outcomes, api.Components.Schemas["Outcome"].Enum) {
		t.Error(api.Components.Schemas["Outcome"].Enum)
	}
}
