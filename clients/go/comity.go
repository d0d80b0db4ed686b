// Package comity asks the decision service of Comity before each request to a site, and reports the outcome.
//
// The shortest way is a http.RoundTripper:
//
//	client := &http.Client{Transport: &comity.Transport{}}
//
// With any other way to send requests, use Client.Do:
//
//	err := client.Do(ctx, url, func(permit *comity.Permit) error {
//		response, err := send(url)
//		if err == nil {
//			permit.Answered(response.StatusCode, response.Header)
//		}
//		return err
//	})
//
// The files in reading order: types.go (what is exchanged), errors.go, outcome.go (the outcome of a request), permit.go
// (the right to send one), client.go (all calls), wait.go (the wait for a permit), transport.go.
package comity
